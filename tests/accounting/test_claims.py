"""The claims of the founding notes against an acceptance table that was worked out by hand, without this package."""

from __future__ import annotations

from fractions import Fraction

import pytest

from mixlab.accounting.claims import Check, Claim, results
from mixlab.accounting.figures import Printed, decimal, short
from mixlab.errors import MixlabError

# Of every claim: the verdict, and numbers that must be among those recomputed for it.
ACCEPTED: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("right", ()),
    2: ("right", ("102,400", "100")),
    3: ("right", ("419,430,400",)),
    4: ("answered", ("6,400", "4,096")),
    5: ("answered", ("102,400", "6,553,600")),
    6: ("right", ("4,096",)),
    7: ("right", ("154,618,822,656",)),
    8: ("answered", ("262,144", "201,326,592")),
    9: ("right", ("589,824",)),
    10: ("answered", ("2,301,952", "2,304,100")),
    11: ("right", ("258", "256")),
    12: ("slip", ("768",)),
    13: ("slip", ("256",)),
    14: ("right", ("12,288",)),
    15: ("slip", ("192", "3")),
    16: ("right", ("4,096",)),
    17: ("slip", ("589,824",)),
    18: ("slip", ("17,868,137,693,184",)),
    19: ("right", ("36,864",)),
    20: ("right", ("4,672", "12.67%")),
    21: ("slip", ("154,618,822,656", "309,237,645,312")),
    22: ("rounded", ("1,769,472",)),
    23: ("right", ("589,824",)),
    24: ("right", ("512", "402,653,184", "603,979,776")),
    25: ("slip", ("64",)),
    26: ("right", ("1,769,472", "589,824")),
    27: ("rounded", ("4,718,592",)),
    28: ("slip", ("6,488,064", "7,077,888", "7,087,872", "589,824")),
    29: ("right", ("85,054,464", "77,856,768")),
    30: ("slip", ("23,440,896", "23,837,184")),
    31: ("right", ("393,216",)),
    32: ("answered", ("109,482,240",)),
    33: ("answered", ("124,439,808", "354,823,168", "774,030,080", "1,557,611,200")),
    34: ("right", ()),
    35: ("rounded", ("38,654,705,664",)),
    36: ("slip", ("65,536", "2,533,274,790,395,904")),
    37: ("slip", ("12,884,901,897", "4,294,967,305", "36")),
    38: ("right", ("1,728", "1,792", "113,246,208", "65,536")),
    39: ("right", ("4,718,592",)),
    40: ("rounded", ("94,371,840",)),
    41: ("slip", ("1", "256")),
    42: ("right", ("528,896", "11.21%")),
    43: ("slip", ("7,225", "7,396")),
    44: ("right", ("256",)),
    45: ("slip", ("84,934,656",)),
    46: ("right", ("768", "196", "197")),
    47: ("right", ("590,592", "86,567,656")),
    48: ("right", ("256", "21,743,271,936")),
    49: ("cited", ()),
    50: ("right", ("16",)),
}


def test_every_claim_is_judged_as_it_was_by_hand() -> None:
    told = {row["number"]: row for row in results()}
    assert list(told) == list(range(1, 51)) == list(ACCEPTED)
    for number, (verdict, values) in ACCEPTED.items():
        row = told[number]
        assert row["verdict"] == verdict, row
        assert set(values) <= {check["value"] for check in row["checks"]}, row


def test_a_verdict_follows_from_the_numbers_and_is_not_stored() -> None:
    wrong = Claim(1, "two and two is five", (Check("5", "sum", lambda: 4), Check("4", "sum", lambda: 4)))
    assert wrong.result()["verdict"] == "slip"
    assert Claim(1, "", (Check("", "", lambda: 1), Check("1", "", lambda: 1))).result()["verdict"] == "answered"


@pytest.mark.parametrize(
    ("printed", "value", "verdict"),
    [
        ("419M", 419_430_400, "right"),
        ("419M", 419_500_000, "rounded"),
        ("419M", 420_000_000, "slip"),
        ("155B", 154_618_822_656, "right"),
        ("154B", 154_618_822_656, "rounded"),
        ("5M", 4_718_592, "rounded"),
        ("2M", 1_769_472, "rounded"),
        ("~80M", 94_371_840, "rounded"),
        ("~80M", 101_000_000, "slip"),
        ("< 1M", 999_999, "right"),
        ("< 1M", 1_000_000, "slip"),
        ("0.39M", 393_216, "right"),
        ("11%", Fraction(528_896, 4_718_592), "right"),
        ("3*258", 774, "right"),
        ("3*258", 768, "slip"),
        ("154T", 154_618_822_656, "slip"),
    ],
)
def test_a_printed_number_is_right_to_its_digits(printed: str, value: int | Fraction, verdict: str) -> None:
    assert Printed(printed).judge(value) == verdict


def test_numbers_are_printed_without_floats() -> None:
    assert [short(x) for x in (0, 9_999, 10_000, 419_430_400, 154_618_822_656, 10**15)] == [
        "0",
        "9,999",
        "10.0K",
        "419.4M",
        "154.6B",
        "1.00e15",
    ]
    assert short(10**30 + 1) == "1.00e30"
    assert short(Fraction(1, 8)) == "0.13"
    assert decimal(Fraction(5, 2), 0) == "3"
    with pytest.raises(MixlabError):
        Printed("many").judge(1)
