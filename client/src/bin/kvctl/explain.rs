//! explain: the protocol made visible.
//!
//! Always true: what is shown is what was posted, in the order posted; the operation was really performed. Nothing is
//! claimed of the server's CPU that the fabric does not keep.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use sidestep_client::common::fabric::{Commits, Join};
use sidestep_client::{Effect, Error, FabricKind, Session, Trace};

use crate::arguments::{Common, Explained, OutputFormat};
use crate::bytes::{JsonBytes, printable};
use crate::connection::{Purpose, connect, endpoint, over};
use crate::duration::microseconds;
use crate::failure::{Exit, Failure};
use crate::{keys, output};

/// An operation that was performed and written down.
#[derive(Debug, Serialize)]
struct Explanation {
    endpoint: String,
    fabric: FabricKind,
    connection: String,
    operation: &'static str,
    key: String,
    key_encoding: &'static str,
    result: String,
    #[serde(flatten)]
    trace: Trace,
    summary: Summary,
}

/// What it took.
#[derive(PartialEq, Debug, Serialize)]
struct Summary {
    round_trips: u64,
    verbs: usize,
    /// Among them, those that nobody waited for.
    silent_verbs: usize,
    bytes: u64,
    total_us: f64,
    /// Whether the server's CPU took part in the verbs.
    server_cpu_in_data_path: bool,
    /// Whether it did so, or would have, for each CAS only.
    two_sided_commits: bool,
    /// Requests for block memory, each for many operations to come.
    chunk_requests: u64,
    retries: u64,
}

/// What the operation came to.
enum Outcome {
    Found(usize),
    Absent,
    Stored(usize),
    Deleted,
}

/// `kvctl explain`.
pub(crate) fn explain(common: &Common, operation: &Explained) -> Result<Exit, Failure> {
    let (name, arguments, purpose) = match operation {
        Explained::Get(arguments) => ("get", arguments, Purpose::Read),
        Explained::Put(arguments) => ("put", &arguments.key, Purpose::Change),
        Explained::Del(arguments) => ("del", arguments, Purpose::Change),
    };
    let key = keys::key(arguments)?;
    let value = match operation {
        Explained::Put(arguments) => keys::value(arguments)?,
        _ => Vec::new(),
    };
    let client = connect(common, purpose)?;
    let (fabric, connection) = client.fabric()?;
    // The first verb of a session touches pages and buffers that were never touched: let another get pay for that.
    client.with_session(|session| session.get_with(b"kvctl warms up", |_| ()))?;
    let (outcome, trace) = client.explain(|session| perform(session, operation, &key, &value));
    let statistics = client.statistics();
    let retries = statistics.get.retries + statistics.put.retries + statistics.delete.retries;
    let two_sided = client.with_session(|session| {
        let join = &session.welcome()?.join;
        Ok(matches!(join, Join::Verbs { commits: Commits::TwoSided { .. }, .. }))
    });
    // The operation's own error, if there was one, says more than that no session can be had now.
    let two_sided = two_sided.unwrap_or(false);
    let summary = Summary::new(&trace, fabric, two_sided, statistics.chunk_requests, retries);
    let (result, exit, effect) = match &outcome {
        Ok(Outcome::Found(bytes)) => {
            (format!("found, {}", plural(*bytes as u64, "byte")), Exit::Ok, Effect::No)
        }
        Ok(Outcome::Absent) => ("not found".into(), Exit::No, Effect::No),
        Ok(Outcome::Stored(bytes)) => {
            (format!("stored, {}", plural(*bytes as u64, "byte")), Exit::Ok, Effect::Yes)
        }
        Ok(Outcome::Deleted) => ("deleted".into(), Exit::Ok, Effect::Yes),
        Err(error) => ("error".into(), Exit::Failed, error.effect()),
    };
    let shown_key = JsonBytes::new(&key);
    let explanation = Explanation {
        endpoint: endpoint(common).to_owned(),
        fabric,
        connection,
        operation: name,
        key: shown_key.text,
        key_encoding: shown_key.encoding,
        result,
        trace,
        summary,
    };
    // What was posted before an error is worth seeing too.
    match common.output {
        OutputFormat::Json => output::write_json(&explanation, effect)?,
        OutputFormat::Text => output::write(text(&explanation, &printable(&key)).as_bytes(), effect)?,
    }
    outcome?;
    Ok(exit)
}

fn perform(session: &mut Session, operation: &Explained, key: &[u8], value: &[u8]) -> Result<Outcome, Error> {
    Ok(match operation {
        Explained::Get(_) => session.get_with(key, <[u8]>::len)?.map_or(Outcome::Absent, Outcome::Found),
        Explained::Put(_) => {
            session.put(key, value)?;
            Outcome::Stored(value.len())
        }
        Explained::Del(_) if session.delete(key)? => Outcome::Deleted,
        Explained::Del(_) => Outcome::Absent,
    })
}

impl Summary {
    fn new(
        trace: &Trace,
        fabric: FabricKind,
        two_sided_commits: bool,
        chunk_requests: u64,
        retries: u64,
    ) -> Self {
        let has_commit = trace.verbs.iter().any(|verb| verb.verb == "CAS");
        let first = trace.verbs.iter().map(|verb| verb.posted).min().unwrap_or_default();
        let last = trace.verbs.iter().filter_map(|verb| verb.completed).max().unwrap_or(first);
        Self {
            round_trips: trace.round_trips(),
            verbs: trace.verbs.len(),
            silent_verbs: trace.verbs.iter().filter(|verb| verb.silent).count(),
            bytes: trace.verbs.iter().map(|verb| verb.bytes).sum(),
            total_us: last.saturating_sub(first).as_nanos() as f64 / 1000.0,
            server_cpu_in_data_path: fabric == FabricKind::Tcp || (two_sided_commits && has_commit),
            two_sided_commits,
            chunk_requests,
            retries,
        }
    }

    fn text(&self) -> String {
        let mut text =
            format!("{}, {}", plural(self.round_trips, "round trip"), plural(self.verbs as u64, "verb"));
        if self.silent_verbs > 0 {
            let _ = write!(text, " ({} not waited for)", self.silent_verbs);
        }
        let _ = write!(text, ", {}, {:.1} µs; server CPU: ", plural(self.bytes, "byte"), self.total_us);
        text.push_str(match (self.server_cpu_in_data_path, self.two_sided_commits) {
            (true, true) => "it executed the CAS (commits are two-sided); the other verbs were the card's",
            (true, false) => "its tcp threads play the network card (verbs and shm need none)",
            (false, _) => "not involved",
        });
        if self.retries > 0 {
            let _ = write!(
                text,
                "\n{}, because of other clients or a lost connection",
                plural(self.retries, "new attempt")
            );
        }
        if self.chunk_requests > 0 {
            text.push_str(
                "\nBefore that the new session asked the server for block memory, once for many puts.",
            );
        }
        text
    }
}

fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn text(explanation: &Explanation, key: &str) -> String {
    let Explanation { endpoint, fabric, connection, operation, result, trace, summary, .. } = explanation;
    let mut text = format!("{operation} {key}: {result}\n{endpoint} {}\n\n", over(*fabric, connection));
    let header = ["trip", "verb", "of", "region offset", "bytes", "posted µs", "completed µs", "outcome"];
    let mut rows = vec![header.map(String::from)];
    // A new session's set-up comes before the first verb; times count from that.
    let first = trace.verbs.iter().map(|verb| verb.posted).min().unwrap_or_default();
    let time = |at: Duration| microseconds(at.saturating_sub(first));
    let mut last_trip = 0;
    for verb in &trace.verbs {
        // One number a round trip: what shares it was posted together.
        let trip = if verb.round_trip == last_trip { String::new() } else { verb.round_trip.to_string() };
        last_trip = verb.round_trip;
        rows.push([
            trip,
            verb.verb.to_owned(),
            verb.subject.to_owned(),
            format!("{:#014x}", verb.remote_offset),
            verb.bytes.to_string(),
            time(verb.posted),
            verb.completed.map_or_else(|| "-".into(), time),
            verb.outcome.clone(),
        ]);
    }
    const RIGHT: [bool; 8] = [true, false, false, false, true, true, true, false];
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = if RIGHT[column] {
                write!(line, "  {cell:>width$}")
            } else {
                write!(line, "  {cell:<width$}")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let _ = writeln!(text, "\n{}", summary.text());
    text
}

#[cfg(test)]
mod tests {
    use sidestep_client::TracedVerb;

    use super::*;

    fn verb(round_trip: u64, verb: &'static str, bytes: u64, silent: bool) -> TracedVerb {
        let posted = Duration::from_micros(100 + 10 * round_trip);
        TracedVerb {
            round_trip,
            verb,
            subject: "slot",
            remote_offset: 0x1000,
            bytes,
            silent,
            outcome: "done".into(),
            posted,
            completed: (!silent).then_some(posted + Duration::from_micros(5)),
        }
    }

    fn update() -> Trace {
        Trace {
            verbs: vec![
                verb(1, "READ", 256, false),
                verb(1, "WRITE", 64, false),
                verb(2, "READ", 64, false),
                verb(3, "CAS", 8, false),
                verb(3, "WRITE", 1, true),
            ],
        }
    }

    #[test]
    fn a_summary_adds_up() {
        let summary = Summary::new(&update(), FabricKind::Shm, false, 0, 0);
        assert_eq!((summary.round_trips, summary.verbs, summary.silent_verbs), (3, 5, 1));
        assert_eq!((summary.bytes, summary.total_us), (393, 25.0));
        let text = summary.text();
        assert!(text.starts_with("3 round trips, 5 verbs (1 not waited for), 393 bytes, 25.0 µs;"), "{text}");
        assert!(text.ends_with("server CPU: not involved"), "{text}");
    }

    /// Over TCP the server's threads do the work: saying otherwise would be a lie.
    #[test]
    fn tcp_claims_no_idle_server() {
        let text = Summary::new(&update(), FabricKind::Tcp, false, 0, 0).text();
        assert!(!text.contains("not involved"), "{text}");
    }

    /// With two-sided commits the server executes each CAS, and nothing of a get.
    #[test]
    fn a_two_sided_commit_is_no_idle_server_either() {
        let update = Summary::new(&update(), FabricKind::Verbs, true, 0, 0);
        assert!(
            update.server_cpu_in_data_path && update.text().contains("it executed the CAS"),
            "{update:?}"
        );
        let trace = Trace { verbs: vec![verb(1, "READ", 256, false), verb(2, "READ", 64, false)] };
        let get = Summary::new(&trace, FabricKind::Verbs, true, 0, 0);
        assert!(!get.server_cpu_in_data_path && get.text().ends_with("server CPU: not involved"), "{get:?}");
    }

    #[test]
    fn nothing_posted_is_no_panic() {
        let summary = Summary::new(&Trace::default(), FabricKind::Shm, false, 0, 0);
        assert_eq!((summary.round_trips, summary.total_us), (0, 0.0));
    }

    #[test]
    fn one_line_a_verb_in_columns() {
        let trace = update();
        let explanation = Explanation {
            endpoint: "e".into(),
            fabric: FabricKind::Shm,
            connection: "mapped".into(),
            operation: "put",
            key: "k".into(),
            key_encoding: "utf8",
            result: "stored, 3 bytes".into(),
            summary: Summary::new(&trace, FabricKind::Shm, false, 0, 0),
            trace,
        };
        let text = text(&explanation, "k");
        let rows: Vec<&str> = text.lines().skip(3).take(6).collect();
        let column = rows[0].find("region offset").unwrap();
        assert!(rows[1..].iter().all(|row| row[column..].starts_with("0x000000001000")), "{text}");
        assert!(rows[5].contains(" - "), "a verb that nobody waits for has no completion: {text}");
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(json["verbs"][0]["verb"], "READ");
        assert_eq!(json["summary"]["round_trips"], 3);
    }
}
