"""Call ids as the templates of the family take them."""

from serve_app.text.answer.tools.mistral import short_id, with_short_ids


def test_ids_are_nine_letters_or_digits_and_pair_as_before() -> None:
    turn = {"role": "assistant", "tool_calls": [{"id": "call_0123"}, {"id": "abcDEF123"}, {"function": {}}]}
    first, second, third = (call["id"] for call in with_short_ids(turn)["tool_calls"])
    assert second == "abcDEF123"
    assert all(len(i) == 9 and i.isalnum() for i in (first, second, third))
    assert len({first, second, third}) == 3
    answer = {"role": "tool", "content": "x", "tool_call_id": "call_0123"}
    assert with_short_ids(answer) == {**answer, "tool_call_id": first}
    assert turn["tool_calls"][0] == {"id": "call_0123"}
    assert short_id("é" * 9) != "é" * 9


def test_other_messages_stay() -> None:
    assert with_short_ids({"role": "user", "content": "x"}) == {"role": "user", "content": "x"}
