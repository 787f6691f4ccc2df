"""Tables say what the records hold, in plain text that fits the page."""

from __future__ import annotations

import msgspec

import weft.api  # noqa: F401  plans print as tables once it is imported
from weft.planning.compare import Row
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import Profile
from weft.program.timeline import Timeline
from weft.report.tables import (
    compare_table,
    list_table,
    plan_table,
    profile_table,
    render,
    timeline_table,
)


def lines_with(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if word in line]


def test_a_printed_plan_names_every_device_its_layers_and_its_price(plan: Plan) -> None:
    text = render(plan_table(plan))
    assert text.splitlines()[0] == "chain: alexnet, batch 128, 3.21 s a step predicted"
    (pi,) = lines_with(text, "conv1 to conv2 (0-1)")
    assert pi.split()[:2] == ["pi", "device"]
    assert "2.40 s" in pi
    assert "38.0 MB of 1.02 GB" in pi
    assert lines_with(text, "conv3 (2)")
    assert lines_with(text, "fc1 to fc2 (3-4)")
    assert "pi>nuc 11.1 MB" in text
    assert "4 micro-batches, 2 in flight" in text


def test_a_plan_of_auto_says_which_strategy_it_took(plan: Plan) -> None:
    auto = msgspec.structs.replace(plan, strategy="auto").deciding(taken="hiertrain+", why="")
    first = render(plan_table(auto)).splitlines()[0]
    assert first.startswith("auto (takes hiertrain+): alexnet")


def test_a_plan_without_a_price_can_be_printed(plan: Plan) -> None:
    text = str(msgspec.structs.replace(plan, predicted=None))
    assert text.splitlines()[0] == "chain: alexnet, batch 128"


def test_a_source_without_layers_has_a_row_that_says_what_it_does(plan: Plan) -> None:
    moved = msgspec.structs.replace(plan, shards=(Shard("nuc", (0, 4)),))
    (row,) = lines_with(str(moved), "feeds the samples")
    assert row.split()[0] == "pi"


def test_parts_are_told_in_words(plan: Plan) -> None:
    shards = (
        Shard("pi", (0, 1), Part(samples=80)),
        Shard("nuc", (0, 1), Part(samples=48, offset=80)),
        Shard("cloud", (2, 2), Part(rows=(0, 56))),
        Shard("cloud", (3, 3), Part(units=(1, 5, 9))),
        Shard("cloud", (4, 4), Part(classes=(2, 3, 4))),
    )
    text = str(msgspec.structs.replace(plan, shards=shards))
    for words in ("80 samples (0:80)", "48 samples (80:128)", "rows 0:56", "3 units"):
        assert words in text
    assert "classes 2, 3, 4" in text


def test_plain_text_has_no_colour_no_trailing_space_and_fits_a_hundred_columns(plan: Plan) -> None:
    named = "a-layer-with-a-very-long-name-" * 4
    layers = tuple(msgspec.structs.replace(layer, name=named) for layer in plan.profile.layers)
    profile = msgspec.structs.replace(plan.profile, layers=layers)
    text = str(msgspec.structs.replace(plan, profile=profile))
    assert "\x1b" not in text
    assert all(line == line.rstrip() and len(line) <= 100 for line in text.splitlines())


def test_names_with_brackets_are_shown_as_they_are(plan: Plan) -> None:
    layers = tuple(
        msgspec.structs.replace(layer, name=f"[red]{i}[/red]")
        for i, layer in enumerate(plan.profile.layers)
    )
    profile = msgspec.structs.replace(plan.profile, layers=layers)
    assert "[red]2[/red] (2)" in str(msgspec.structs.replace(plan, profile=profile))
    assert "[red]2[/red]" in render(profile_table(profile))


def test_a_comparison_names_what_is_not_possible_in_one_line_below_the_table() -> None:
    cloud = "strategy {} needs a device of tier 'cloud'; the fleet has only: pi (device)"
    rows = [
        Row("chain", "train", seconds=0.5, speedup=4.0, devices=("pi", "nuc")),
        Row("pi-only", "train", seconds=2.0, speedup=1.0, devices=("pi",)),
        Row("all-cloud", "train", why_not=cloud.format("all-cloud")),
        Row("swarm", "train", why_not="fleet: pi has no link to nuc; a swarm needs one"),
        Row("jalad", "train", why_not=cloud.format("jalad")),
    ]
    text = render(compare_table(rows, "alexnet"), width=200)
    assert [line.split()[0] for line in lines_with(text, "x ")] == ["chain", "pi-only"]
    assert "4.00x" in lines_with(text, "chain")[0]
    assert text.splitlines()[-1] == (
        "not for this fleet: all-cloud, jalad (needs a device of tier 'cloud'); "
        "swarm (pi has no link to nuc)"
    )


def test_a_comparison_of_what_is_possible_says_nothing_of_the_rest() -> None:
    text = render(compare_table([Row("chain", "train", 0.5, 1.0, ("pi",))], "alexnet"))
    assert not lines_with(text, "not for this fleet")


def test_a_comparison_of_nothing_possible_is_only_the_reasons() -> None:
    short = (
        "the plan does not fit: device pi needs 5 MB, has 1 MB (memory_mb). Try: a smaller batch"
    )
    text = render(compare_table([Row("all-device", "train", why_not=short)], "alexnet"))
    assert not lines_with(text, "speedup: over")
    (last,) = lines_with(text, "not for this fleet")
    assert last.endswith("all-device (device pi needs 5 MB, has 1 MB (memory_mb))")


def test_a_profile_shows_every_layer_and_the_sum(plan: Plan) -> None:
    text = render(profile_table(plan.profile))
    for layer in plan.profile.layers:
        assert lines_with(text, layer.name)
    (total,) = lines_with(text, " all ")
    assert "2.10 MB" in total
    assert "45.3 ms" in total  # the pi: (4 + 6 + 3 + 2 + 0.1) ms, and twice that back


def test_a_profile_of_one_device_parts_forward_backward_and_update(plan: Plan) -> None:
    one = {"pi": plan.profile.devices["pi"]}
    text = render(profile_table(msgspec.structs.replace(plan.profile, devices=one)))
    (fc1,) = lines_with(text, "fc1")
    assert fc1.split("M", 1)[1].split() == ["2.00", "ms", "4.00", "ms", "20.0", "ms"]


def test_a_profile_of_many_devices_or_none_still_fits(plan: Plan) -> None:
    times = plan.profile.devices["pi"]
    many = {f"device-{n}": times for n in range(12)}
    for devices in (many, {}):
        profile: Profile = msgspec.structs.replace(plan.profile, devices=devices)
        assert all(len(line) <= 100 for line in render(profile_table(profile)).splitlines())


def test_predicted_and_measured_stand_side_by_side_per_step(
    predicted: Timeline, measured: Timeline
) -> None:
    text = render(timeline_table(predicted, measured))
    assert text.splitlines()[0] == "step predicted 420 ms, measured 441 ms (1.05x)"
    # 4 predicted and 10 measured steps: only means per step can be compared
    forward = lines_with(text, "forward")[0]
    assert forward.split() == ["forward", "100", "ms", "105", "ms", "1.05"]
    (link,) = lines_with(text, "pi>nuc")
    assert link.endswith("50.0 kB")


def test_a_device_that_did_fewer_steps_is_shown_by_its_own(predicted: Timeline) -> None:
    """Where nobody waits, a slow peer does fewer minibatches, each as slow as predicted."""
    fewer = tuple(span for span in predicted.spans if span.where != "pi" or span.step % 2 == 0)
    text = render(timeline_table(predicted, Timeline(fewer, predicted.step_ends, "measured")))
    assert {line.split()[-1] for line in lines_with(text, "forward")} == {"1.00"}


def test_what_only_one_timeline_has_is_shown_without_a_ratio(predicted: Timeline) -> None:
    spans = tuple(span for span in predicted.spans if span.what != "loss")
    other = Timeline(spans, predicted.step_ends, "measured")
    (loss,) = lines_with(render(timeline_table(predicted, other)), "loss")
    assert loss.split() == ["loss", "3.00", "ms", "-", "-"]


def test_an_empty_timeline_is_an_empty_table() -> None:
    assert "step predicted 0 s" in render(timeline_table(Timeline((), ())))


def test_rich_renderables_are_given_for_terminals_with_colour(plan: Plan) -> None:
    assert render(plan_table(plan), width=160)


def test_words_of_others_do_not_command_the_terminal() -> None:
    text = render(list_table(("device",), [("x\x1b[2J\x9b31m[/red]",)]))
    assert "x\\x1b[2J\\x9b31m[/red]" in text
