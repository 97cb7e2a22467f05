"""Stop strings: nothing of a stop string is shown, however the text is cut."""

import random

import pytest
from jird.errors import BadRequest
from jird.text.stop import StopStrings


def pushed(stops, pieces):
    watcher = StopStrings(stops)
    shown = []
    for piece in pieces:
        text, stopped = watcher.push(piece)
        shown.append(text)
        if stopped:
            return "".join(shown), watcher.found
    return "".join([*shown, watcher.flush()]), None


def test_no_stop_strings_hold_nothing_back():
    watcher = StopStrings(())
    assert watcher.push("abc") == ("abc", False)
    assert watcher.flush() == ""


def test_text_that_may_begin_a_stop_is_held_until_it_does_not():
    watcher = StopStrings(("</end>",))
    assert watcher.push("one </") == ("one ", False)
    assert watcher.push("e") == ("", False)
    assert watcher.push("x") == ("</ex", False)


def test_stop_across_pieces_is_found_and_what_follows_is_dropped():
    assert pushed(("STOP",), ["a S", "T", "OP b"]) == ("a ", "STOP")


def test_after_a_stop_nothing_is_emitted():
    watcher = StopStrings(("\n",))
    assert watcher.push("a\nb") == ("a", True)
    assert watcher.push("c") == ("", True)
    assert watcher.flush() == ""


def test_held_text_is_given_at_the_end():
    watcher = StopStrings(("###",))
    assert watcher.push("x##") == ("x", False)
    assert watcher.flush() == "##"


def test_self_overlapping_stop_is_found_at_its_first_end():
    assert pushed(("aab",), ["aa", "a", "b"]) == ("a", "aab")


def test_of_overlapping_stops_the_first_completed_counts():
    assert pushed(("bcd", "c"), ["abcd"]) == ("ab", "c")
    assert pushed(("bcd", "c"), ["a", "b", "c", "d"]) == ("ab", "c")
    assert pushed(("b", "ab"), ["xab"]) == ("x", "ab")


def test_result_does_not_depend_on_the_cuts():
    draw = random.Random(3)
    for _ in range(300):
        text = "".join(draw.choice("ab\n") for _ in range(20))
        stops = tuple({"".join(draw.choice("ab\n") for _ in range(draw.randint(1, 4))) for _ in range(3)})
        pieces, at = [], 0
        while at < len(text):
            size = draw.randint(1, 5)
            pieces.append(text[at : at + size])
            at += size
        first = min((text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text) if any(s in text for s in stops) else None
        want = text if first is None else text[: first[1]]
        assert pushed(stops, pieces)[0] == pushed(stops, [text])[0] == want


@pytest.mark.parametrize("stops", [("",), ("a", ""), (3,)])
def test_empty_or_foreign_stop_strings_are_refused(stops):
    with pytest.raises(BadRequest):
        StopStrings(stops)
