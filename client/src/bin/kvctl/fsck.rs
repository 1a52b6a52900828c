//! fsck.
//!
//! Always true: it exits with 1 exactly if something is wrong; all findings are counted, also those that are not shown.

use std::fmt::Write;
use std::fs::File;

use serde::Serialize;
use sidestep_client::Effect;
use sidestep_client::common::layout::{SLOTS_PER_BUCKET, Superblock};
use sidestep_client::fsck::{
    Accounts, Dump, Finding, IndexCounts, Live, Notes, Options, RegionSource, Report, SourceError, Sum, check,
};

use crate::arguments::{Common, FsckArguments, OutputFormat};
use crate::connection::{Purpose, connect, endpoint, over};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::progress::ProgressLine;
use crate::stats::bytes;

/// `kvctl fsck`.
pub(crate) fn fsck(common: &Common, arguments: &FsckArguments) -> Result<Exit, Failure> {
    let (name, how, superblock, report) = match &arguments.dump {
        Some(path) => {
            let name = path.display().to_string();
            let file = File::open(path).map_err(|source| Failure::Io {
                doing: format!("opening {name}"),
                source,
                effect: Effect::No,
            })?;
            let failed = |error| Failure::of_source(&name, error);
            let mut dump = Dump::open(file).map_err(SourceError::from).map_err(failed)?;
            let how = if dump.is_still() { "a dump" } else { "a dump of a region that changed meanwhile" };
            let report = look(&mut dump, common, arguments).map_err(failed)?;
            (name.clone(), how.to_owned(), dump.superblock(), report)
        }
        None => {
            let name = endpoint(common);
            let failed = |error| Failure::of_source(name, error);
            let client = connect(common, Purpose::Inspect)?;
            let mut session = client.session()?;
            let (fabric, description) = session.fabric()?;
            let mut live = Live::new(session).map_err(failed)?;
            let report = look(&mut live, common, arguments).map_err(failed)?;
            (name.to_owned(), over(fabric, &description), live.superblock(), report)
        }
    };
    match common.output {
        OutputFormat::Json => {
            output::write_json(&Shown::new(&name, &superblock, &report), Effect::No)?;
        }
        OutputFormat::Text => {
            let text = text(&format!("{name}, {how}"), &superblock, &report);
            output::write(text.as_bytes(), Effect::No)?;
        }
    }
    Ok(if report.is_clean() { Exit::Ok } else { Exit::No })
}

fn look(
    source: &mut impl RegionSource,
    common: &Common,
    arguments: &FsckArguments,
) -> Result<Report, SourceError> {
    let mut line = ProgressLine::new(common.output);
    let mut tell = |progress| line.tell(progress);
    let options = Options { findings_max: Some(arguments.limit), progress: Some(&mut tell) };
    let report = check(source, options);
    line.end();
    report
}

/// What programs are shown.
#[derive(Serialize)]
struct Shown<'a> {
    region: &'a str,
    incarnation: String,
    region_bytes: u64,
    clean: bool,
    finding_count: u64,
    findings_by_kind: &'a std::collections::BTreeMap<&'static str, u64>,
    findings: Vec<ShownFinding>,
    notes: Notes,
    index: IndexCounts,
    accounts: Accounts,
    accounts_balanced: bool,
}

#[derive(Serialize)]
struct ShownFinding {
    offset: u64,
    kind: &'static str,
    part: String,
    message: String,
}

impl<'a> Shown<'a> {
    fn new(name: &'a str, superblock: &Superblock, report: &'a Report) -> Self {
        let finding = |finding: &Finding| ShownFinding {
            offset: finding.offset.0,
            kind: finding.problem.name(),
            part: finding.part.to_string(),
            message: finding.problem.to_string(),
        };
        Self {
            region: name,
            incarnation: format!("{:#018x}", superblock.incarnation),
            region_bytes: superblock.geometry.region_bytes,
            clean: report.is_clean(),
            finding_count: report.finding_count(),
            findings_by_kind: &report.by_kind,
            findings: report.findings.iter().map(finding).collect(),
            notes: report.notes,
            index: report.index,
            accounts: report.accounts,
            accounts_balanced: report.accounts.is_balanced(),
        }
    }
}

/// What people are shown.
fn text(name: &str, superblock: &Superblock, report: &Report) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    let region = bytes(superblock.geometry.region_bytes);
    line(format!("region of {region}, incarnation {:#018x}: {name}\n", superblock.incarnation));
    for finding in &report.findings {
        line(finding.to_string());
    }
    let shown = report.findings.len() as u64;
    if report.finding_count() > shown {
        line(format!("and {} more (--limit shows them)", report.finding_count() - shown));
    }
    if !report.is_clean() {
        line(String::new());
    }
    for (kind, count) in &report.by_kind {
        line(format!("{kind:<26} {count:>14}"));
    }
    if !report.is_clean() {
        line(String::new());
    }
    let index = &report.index;
    for (what, count) in [
        ("keys", index.live),
        ("deleted keys", index.deleted),
        ("keys being moved", index.moved),
        ("slots never used", index.empty),
        ("segments", index.segments),
    ] {
        line(format!("{what:<26} {count:>14}"));
    }
    let fullest = index.fullest_bucket;
    line(format!("{:<26} {fullest:>14} of {SLOTS_PER_BUCKET} slots", "fullest bucket"));
    line(format!("\n{:<26} {:>14} {:>18}", "block pool", "blocks", "bytes"));
    let accounts = &report.accounts;
    for (what, Sum { blocks, bytes }) in [
        ("of keys", accounts.live),
        ("of deleted keys", accounts.deleted),
        ("marked free", accounts.free),
        ("in hand or never used", accounts.in_hand),
        ("in nobody's hand", accounts.unused),
        ("left behind", accounts.left_behind),
    ] {
        line(format!("  {what:<28} {blocks:>10} {bytes:>18}"));
    }
    for (what, bytes) in
        [("free maps and rounding", accounts.overhead_bytes), ("of no class", accounts.ungranted_bytes)]
    {
        line(format!("  {what:<28} {:>10} {bytes:>18}", ""));
    }
    let sum = accounts.sum_bytes();
    let verdict = if accounts.is_balanced() { "all of the pool" } else { "not the pool" };
    line(format!("  {:<28} {:>10} {sum:>18}  {verdict}, {} bytes", "sum", "", accounts.pool_bytes));
    line(String::new());
    for note in notes(&report.notes) {
        line(note);
    }
    line(match report.finding_count() {
        0 => "clean".to_owned(),
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    });
    text
}

fn notes(notes: &Notes) -> Vec<String> {
    let mut lines = Vec::new();
    if notes.changed > 0 {
        lines
            .push(format!("note: {} times, what seemed wrong changed while it was looked at", notes.changed));
    }
    if notes.sealed_buckets > 0 {
        lines.push(format!("note: {} buckets are sealed by a rebuild under way", notes.sealed_buckets));
    }
    if notes.grants_changed {
        lines.push("note: the list of grants kept changing, so that its sums were not compared".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use sidestep_client::common::layout::{AtomicityDomain, Geometry, Offset};
    use sidestep_client::fsck::{Part, Problem};

    use super::*;

    /// People and programs get place, kind, and what was expected and found; and how many were not shown.
    #[test]
    fn findings_are_shown_and_counted() {
        let superblock = Superblock {
            geometry: Geometry::for_region(4 << 20).unwrap(),
            incarnation: 0xabc,
            hash_seed: 1,
            domain: AtomicityDomain::Cpu,
            grace_ms: 1,
        };
        let problem = Problem::BucketDepth { expected: 5, found: 4 };
        let part = Part::Bucket { segment: 3, bucket: 2 };
        let finding = Finding { offset: Offset(0x1_4200), part, problem };
        let report = Report {
            findings: vec![finding],
            by_kind: [("bucket-depth", 3)].into(),
            notes: Notes { changed: 2, ..Notes::default() },
            ..Report::default()
        };
        let text = text("somewhere", &superblock, &report);
        for part in [
            "0x14200 bucket-depth: segment 3 bucket 2",
            "depth 4",
            "says 5",
            "and 2 more",
            "3 findings",
            "2 times",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let json = serde_json::to_value(Shown::new("somewhere", &superblock, &report)).unwrap();
        assert_eq!(json["findings"][0]["offset"], 0x1_4200);
        assert_eq!(json["findings"][0]["kind"], "bucket-depth");
        assert_eq!((&json["finding_count"], &json["clean"]), (&3.into(), &false.into()));
    }
}
