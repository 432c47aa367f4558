"""`python -m prime_inference` is `prime-inference`."""

from prime_inference.cli import main

if __name__ == "__main__":
    main()
