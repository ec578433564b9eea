"""How fast every configuration delivers batches without training: of photos, random crops of
photos, Fashion-MNIST and windows of a series.

    python -m benchmarks.input_pipelines [--data photos fashion_mnist] [--photos DIR]

    python -m venv ENV && ENV/bin/pip install -r benchmarks/peers-requirements.txt
    python -m benchmarks.input_pipelines --data photos --peers ENV/bin/python

Every configuration has its own process, which takes turns without its start; the median over rounds
counts. The limit for photos is memcpy of the same bytes by one thread. With --peers, other
libraries' loaders deliver the same photos (224×224 uint8, batches of 64) on all cores; one that
cannot be imported is left out, with a message.
"""

from benchmarks import data
from benchmarks.command_line import add_photos, command_line
from benchmarks.turns import our_loaders, peer_loaders, show, take_turns

OF_PHOTOS = {"photos": data.photos, "crops": data.crops, "imagenet": data.imagenet}
OTHERS = {"fashion_mnist": data.fashion_mnist, "windows": data.windows}
THEIRS = ("torch_pil", "torch_opencv", "webdataset", "grain", "dali")
KINDS = (*OF_PHOTOS, *OTHERS)


def main() -> None:
    parser = command_line("input_pipelines", __doc__)
    add_photos(parser)
    parser.add_argument("--data", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="only these configurations and naive"
    )
    parser.add_argument("--peers", metavar="FILE", help="Python interpreter of the other libraries")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default: 5)")
    options = parser.parse_args()
    for kind in options.data:
        if kind in OF_PHOTOS:
            photos = data.find_photos(options.work, options.photos)
            folder = OF_PHOTOS[kind](options.work, photos)
        else:
            folder = OTHERS[kind](options.work)
        loaders = our_loaders(folder, list(data.read_params(folder).pipelines))
        if options.only:
            loaders = {name: loaders[name] for name in ("naive", *options.only) if name in loaders}
        if kind == "photos":
            loaders |= our_loaders(folder, ["memcpy"])
            loaders |= peer_loaders(options.peers, photos, THEIRS) if options.peers else {}
        show(kind, take_turns(loaders, rounds=options.rounds), "naive")


if __name__ == "__main__":
    main()
