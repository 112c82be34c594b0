"""`python -m deepiofs.cli.optiontable > docs/OPTIONS.md`: the page of mount options, from the one table."""

from __future__ import annotations

from deepiofs.options import GENERIC, option_rows

_BEFORE = """\
# Mount options

Made by `python -m deepiofs.cli.optiontable > docs/OPTIONS.md` from the table in `deepiofs/options.py`; change that.

Options follow `-o`, separated by commas: `deepiofs mount SOURCE MOUNTPOINT -o cache=40G,warm=full`. `-o` may be given
several times; of several values of one option the last counts. A comma within a value is written `\\,` (in a shell:
`-o 'include=a\\,b.jpg'`). All problems of all options are reported in one line, with exit code 2; an unknown option is
an error that names the nearest one. What is in force is in `.deepiofs/config` of the mount.
"""

_AFTER = """\
A *flag* is given by its name alone; `allow_other=on` and `allow_other=off` are understood too.

## Sizes

A number, with or without a fraction, and one of `K M G T`, with or without `B` or `iB`, in either case: `256M`, `1.5g`,
`4GiB`. All are powers of 1024. `cache` also takes a percentage, `50%`.

`cache` and `staging` are limits per rank. The store takes only what this rank's share of the dataset needs, and its
pages are taken as they are filled. Both together must fit the rank's part of the node: the least of MemAvailable and of
what every memory control group above the process has left, divided by the ranks on the node. `cache=100%` leaves
nothing for `staging`.

What does not fit in `cache` is read from the source in each pass, through `staging`: before it is drawn where names are
shuffled, and ahead of the reader where a large file is read in order. `prefetch` counts draws over all groups together.
With `shuffle=dir` and a sampler that goes through all classes at random it should be at least the number of classes,
and half of `staging` should hold that many samples.

## Globs

`include`, `exclude`, `replicate` and `shuffle_only` take patterns separated by `:`.

- A pattern without a slash means a name at any depth: `*.jpg`.
- A pattern with a slash, in it or before it, means a whole path from the root: `train/*/*.jpg`, `/cache`.
- `*` and `?` do not cross a slash, `**` does; `[a-z]` is a set, `{a,b}` alternatives (the comma written `\\,`).
  Case counts, and a leading dot is a character like others.
- What matches a directory means all that is below it: `exclude=tmp` leaves out every directory `tmp` and its content.
- `exclude` comes before `include`. `include` selects files; directories stay, even if empty.

## The index file

`index=FILE` keeps the index between jobs, so that a mount need not list the source. It holds names, sizes, times, modes
and owners, no contents. `deepiofs index SOURCE -o index=FILE` builds it ahead; a mount with `index=FILE` builds and
writes it if it is missing or no longer matches. Rank 0 alone reads and writes it. It is written under another name and
renamed, so that nobody sees half of it.

An index is used only if its checksum is right, it was built with the same `include`, `exclude` and `links`, and the
source agrees with it. Compared are:

- all directories (modification time and mode): names that were added, removed or renamed are always noticed;
- all files (size, modification time, mode) up to 65,536; above that 65,536 of them, drawn at random each time.

The rest is compared when a file is opened in the source: a file that differs is an error of that file (`EIO`, and a
line in the log). A file that a rank has loaded keeps the content it had then.

If the index does not match, it is built anew, and the log says what differed.

## Rank, local rank, host

| | is | in |
|---|---|---|
| `%r` | number of the rank in the whole job, from 0 on | the mount point, `log`, `order_log` |
| `%l` | number of the rank within its node, from 0 on | the mount point |
| `%h` | name of the host | the mount point |

Ranks of one host must have different mount points: `/mnt/data%l`. With one rank on each node, `/mnt/data` will do.

## Generic options of mount(8)

Accepted and without effect, as mount(8) and fstab(5) hand them over:
"""


def page() -> str:
    """docs/OPTIONS.md."""
    rows = [("option", "values", "default", "meaning"), ("---",) * 4]
    rows += [(f"`{name}`", values, f"`{default}`", meaning) for name, values, default, meaning in option_rows()]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    generic = ", ".join(f"`{name}`" for name in sorted(GENERIC))
    return f"{_BEFORE}\n{table}\n\n{_AFTER}\n{generic}, `comment=...`, and all that begin with `x-`.\n"


if __name__ == "__main__":
    print(page(), end="")
