"""What the answers of neighbours mean: from what was found out about a link to findings and a line of the table."""

from collections.abc import Iterator

import netfleet
from netfleet.errors import TransportError
from netfleet.runs.progress import in_words
from netfleet.sites.doctor.asking import Link
from netfleet.sites.doctor.findings import Finding, LinkResult
from netfleet.sites.doctor.probe import Diagnosis
from netfleet.sites.planning.folders import Site

#: Seconds by which clocks may differ: beyond the first logs cannot be compared, beyond the second certificates that
#: were made just now are not valid yet (docs/sites.md).
CLOCK, MOST_CLOCK = 60.0, 3600.0
_PIN = "netfleet pin DIR with the certificate"
#: What a neighbour's refusal contains, its kind, and what to do.
_REFUSALS = (
    ("is not pinned", "pin", f"there: {_PIN} (node.pem) of this site, if it was renewed"),
    ("not the one that was admitted", "pin", "there: take the file of neighbours.d from the operator again"),
    ("its certificate was revoked", "revoked", "ask the operator for a new certificate for this site"),
    ("neighbours.fingerprints", "pin", "there: add this site's fingerprint to the policy, if it is right"),
    ("it is not a neighbour", "plan", "compare the plans: both folders must come from the same one"),
    ("it is from site", "plan", "compare the plans: both folders must come from the same one"),
    ("a frame of version", "version", "install the same version of netfleet at both sites"),
    ("unknown kind", "version", "install the same version of netfleet at both sites"),
    ("a flood", "busy", "wait a minute, and run netfleet doctor again"),
)


def link_findings(
    site: Site, link: Link, heard: bool, diagnosis: Diagnosis | None, served: bool = True, in_touch: bool = False
) -> Iterator[Finding]:
    """What is wrong with a link; `heard`: the neighbour's doctor has reached this site, which has `served` its port;
    `in_touch`: this site's own process trains with the neighbour.
    """
    name = link.neighbour.name
    if link.answer is None:
        assert link.failure is not None
        if in_touch and not is_refusal(link.failure):  # over a connection that the neighbour has made to that process
            if link.neighbour.address:
                found = _failure(link.failure, diagnosis)
                what = f"{found.what} (this site's process trains with it, over a connection that it made)"
                yield Finding("warning", found.check, name, what, found.cure)
            return
        found = _of_relay(link) or _failure(link.failure, diagnosis)
        more = " (it does reach this site)" if heard else ""
        yield Finding("error", found.check, name, found.what + more, found.cure)
        return
    answer = link.answer
    if answer.run != site.run:
        what = f"has another plan: run {answer.run[:12]}, here {site.run[:12]}"
        yield Finding("error", "plan", name, what, "take the folders of both from the same netfleet plan")
    if answer.version != netfleet.__version__:
        what = f"has netfleet {answer.version}, this site {netfleet.__version__}"
        yield Finding("warning", "version", name, what, "install the same version of netfleet at both sites")
    if link.dialled is not None and link.dialled.failure:
        found = _failure(TransportError(link.dialled.failure), diagnosis)
        what = f"{found.what} (it is reached by another way)"
        yield Finding("warning", found.check, name, what, found.cure)
    if answer.back and served:
        yield _cannot_dial(site, link)
    if link.failure is not None:
        what = f"answers, but the test of the link failed: it {str(link.failure).replace(';', ',')}"
        yield Finding("warning", "slow", name, what, "measure the link, and ask who else uses it")
    if link.clock is not None and abs(link.clock) > CLOCK:
        yield _clock(name, link.clock)


def _cannot_dial(site: Site, link: Link) -> Finding:
    answer, name = link.answer, link.neighbour.name
    assert answer is not None
    if answer.dialled != site.address:
        what = f"cannot reach this site: it dials {answer.dialled}, and this site's address is {site.address}"
        return Finding("error", "address", name, what, f"there: correct the address of {site.name} in site.toml")
    if "pinned" in answer.back:
        what = f"does not accept this site's certificate: this site {answer.back.partition(';')[0]}"
        return Finding("error", "pin", name, what, f"there: {_PIN} (node.pem) of this site, if it was renewed")
    what = f"cannot dial this site: from there, {answer.dialled} {answer.back.replace(';', ',')}"
    port = answer.dialled.rpartition(":")[2]
    cure = f"here: open TCP {port} for {name} in the firewall, and forward it to {site.listen} if the ports differ"
    return Finding("warning", "inbound", name, f"{what} (one open end is enough)", cure)


def is_refusal(failure: TransportError) -> bool:
    """Whether the other site was reached and said no."""
    return str(failure).startswith("refuses: ")


def _of_relay(link: Link) -> Diagnosis | None:
    """Whether the relay is why a neighbour that only dials out did not answer."""
    _, relay, said = str(link.failure).partition("(the relay ")
    if link.neighbour.address or not relay or "is not connected to the relay" in said:
        return None
    what = f"can be reached by the relay only, and the relay {said.removesuffix(')').replace(';', ',')}"
    return Diagnosis("relay", what, "see whether netfleet relay runs there, and let this site dial it")


def _failure(failure: TransportError, diagnosis: Diagnosis | None) -> Diagnosis:
    """Why there was no answer."""
    said = str(failure)
    if is_refusal(failure):
        what = "refuses this site: " + said.removeprefix("refuses: ").partition(";")[0]
        found = ((check, cure) for words, check, cure in _REFUSALS if words in said)
        check, cure = next(found, ("refusal", "look into the log of that site"))
        return Diagnosis(check, what, cure)
    if diagnosis is not None:
        return diagnosis
    if "pinned" in said or "that this site may accept" in said:
        cure = "ask it for its certificate; if it was renewed: netfleet pin DIR ITS-CERTIFICATE.pem"
        return Diagnosis("pin", said.partition(";")[0], cure)
    if "that was revoked" in said:
        return Diagnosis("revoked", said.partition(";")[0], "it needs a new certificate, which you pin: netfleet pin")
    cure = "look for a proxy in between that lets TLS pass but not HTTP/2, and into the log of that site"
    return Diagnosis("silent", said.replace(";", ","), cure)


def _clock(name: str, ahead: float) -> Finding:
    how = "ahead of" if ahead > 0 else "behind"
    what = f"has a clock that is {in_words(abs(ahead))} {how} this site's"
    cure = "set both by NTP (timedatectl set-ntp true)"
    return Finding("error" if abs(ahead) > MOST_CLOCK else "warning", "clock", name, what, cure)


def link_result(link: Link, heard: bool, in_touch: bool = False) -> LinkResult:
    """The line of a neighbour in the table."""
    answer = link.answer
    if answer is None:
        in_touch = in_touch and link.failure is not None and not is_refusal(link.failure)
        return LinkResult(
            link.neighbour.name, "by reverse" if in_touch else "no", "yes" if heard else "", None, None, None, "", ""
        )
    by = [way.how for way in link.ways if not way.failure]
    to = "yes" if link.dialled is not None and not link.dialled.failure else f"by {by[0]}" if by else "yes"
    back = "no" if answer.back else "yes" if answer.dialled else "–"
    state = answer.running if answer.round < 0 else f"{answer.running}, round {answer.round}"
    return LinkResult(link.neighbour.name, to, back, link.clock, link.delay, link.rate, answer.version, state)
