"""The pictures in docs/console.md are of the page that is served."""

from tests.gateway.screenshots import OUT, of_the_page


def test_the_pictures_are_of_this_page() -> None:
    assert (OUT / "page.sha256").read_text().strip() == of_the_page(), "python -m tests.gateway.screenshots, and look"
    named = (OUT.parent / "console.md").read_text()
    for picture in OUT.glob("*.png"):
        assert f"console/{picture.name}" in named
