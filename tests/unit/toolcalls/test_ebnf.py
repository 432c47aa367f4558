"""The grammar text without white space around raw values."""

from prime_inference.toolcalls.ebnf import tight


def test_white_space_goes_from_both_sides_of_a_value_and_stays_everywhere_else() -> None:
    before, after = '(whitespace{0, 2} "<arg_key>a" "</arg_key>" whitespace_2{0, 2} ', " whitespace_5{0, 2})"
    bounded = f'{before}"<arg_value>" whitespace_3{{0, 2}} v whitespace_4{{0, 2}} "</arg_value>"{after}'
    assert tight(bounded) == f'{before}"<arg_value>" v "</arg_value>"{after}'
    unbounded = r'([ \n\r\t]* "<arg_value>" [ \n\r\t]* v [ \n\r\t]* "</arg_value>" [ \n\r\t]*)'
    assert tight(unbounded) == r'([ \n\r\t]* "<arg_value>" v "</arg_value>" [ \n\r\t]*)'


def test_a_literal_of_a_clients_schema_is_not_touched() -> None:
    literal = r'a ::= (("[ \\n\\r\\t]* \"</arg_value>\" \"<arg_value>\" whitespace{0, 2}"))'
    assert tight(literal) == literal
