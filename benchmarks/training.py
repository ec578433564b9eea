"""Does `optimized` train as fast as common choices: all parallel, or all left to AUTOTUNE?

    python -m benchmarks.training --photos DIR --json FILE

A small model makes the input count as it does on a fast accelerator. All three race.
"""

from __future__ import annotations

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results
from benchmarks.racing import race
from throughline.measurement.rounds import Race
from throughline.race.configurations import OWN

NAMES = ("optimized", "heuristic", "autotune")
MODEL = {"name": "mlp", "options": {"width": 64}}


def main() -> None:
    options = data_command_line("training", __doc__).parse_args()
    with open_work(options.work) as work:
        workloads = [data.fashion_mnist(work), data.windows(work)]
        if options.photos:
            photos = (each(options.photos, work) for each in (data.photos, data.crops))
            workloads = [*photos, data.imagenet(options.photos, work), *workloads]
        else:
            print("photos, crops, imagenet: left out, since --photos DIR is not given")
        results = {}
        print(f"{'data':<15}{'optimized against':<20}{'examples/s':>12}{'optimized':>12}  ratio")
        for workload in workloads:
            pipelines = {name: workload.document["pipelines"][name] for name in NAMES}
            result = race(
                {**workload.document, "model": MODEL, "pipelines": pipelines}, workload.layout.root
            )
            raced = Race(rounds=[each for each in result.rounds if each.heat == OWN])
            for other in NAMES[1:]:
                gain = raced.gain(NAMES[0], other)
                results.setdefault(workload.name, {})[other] = vars(gain)
                rates = "".join(f"{raced.rate(each):>12,.0f}" for each in (other, NAMES[0]))
                span = f"{gain.value:.2f}× ({gain.low:.2f} to {gain.high:.2f})"
                print(f"{workload.name:<15}{other:<20}{rates}  {span}", flush=True)
    write_results(options.json, results)


if __name__ == "__main__":
    main()
