//! A look at a hostile region: index, free maps and blocks are the fuzzer's, and so is what the memory node says of grants,
//! of the time and of what changed. The look ends with a report; it stays in the region, and holds little at once. The same
//! of a dump whose every part may be damaged: a report, or an error with a type.
//!
//! What is sound and then changed goes further than what is noise: a region begins as a server makes it, with directory and
//! headers in order.

mod dumped;
mod node;
mod region;

use arbitrary::Arbitrary;
use sidestep_client::fsck::{Options, Report, SourceError, Still, check};

use dumped::DumpSpec;
use node::{AnswerSpec, GrantSpec, Node};
use region::{Region, Spec};

/// Findings that are kept; all are counted.
const FINDINGS_MAX: usize = 16;

#[derive(Arbitrary, Debug)]
struct Input {
    /// What is otherwise than in a fresh region, later ones over earlier ones.
    specs: Vec<Spec>,
    grants: Vec<GrantSpec>,
    answers: AnswerSpec,
    dump: Option<DumpSpec>,
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let Some(input) = super::input::<Input>(bytes) else { return };
    let region = Region::new(&input.specs);
    let facts = input.answers.facts(&region, &input.grants);
    let options = || Options { findings_max: Some(FINDINGS_MAX), progress: None };

    let mut node = Node::new(&region, facts.clone(), &input.answers);
    match check(&mut node, options()) {
        Ok(report) => check_report(&report),
        Err(error) => panic!("every byte can be had: {error}"),
    }

    let Some(spec) = input.dump else { return };
    let mut still = Still::new(facts, |offset, into: &mut [u8]| {
        region.read(offset.0, into);
        Ok(())
    });
    let found = match check(&mut still, options()) {
        Ok(report) => report,
        Err(error) => panic!("every byte can be had: {error}"),
    };
    match spec.open(&mut still) {
        Ok((mut dump, is_damaged)) => match check(&mut dump, options()) {
            Ok(report) => {
                check_report(&report);
                assert!(is_damaged || report == found, "a dump shows {report:?}, its region {found:?}");
            }
            Err(error) => check_error(&error),
        },
        Err(error) => check_error(&SourceError::from(error)),
    }
}

fn check_report(report: &Report) {
    assert!(report.findings.len() <= FINDINGS_MAX);
    assert!(report.finding_count() >= report.findings.len() as u64);
    assert_eq!(report.is_clean(), report.findings.is_empty());
    for finding in &report.findings {
        assert!(!finding.to_string().is_empty());
    }
}

/// An error of a dump's, with words.
fn check_error(error: &SourceError) {
    assert!(matches!(error, SourceError::Dump(_)) && !error.to_string().is_empty(), "{error:?}");
}
