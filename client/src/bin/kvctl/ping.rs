//! ping.
//!
//! Always true: each line has both answers, the server's on the control channel (its CPU answers) and the memory's (one
//! READ, which a card answers, or nobody).

use std::time::{Duration, Instant};

use serde_json::json;
use sidestep_client::{Client, Effect};

use crate::arguments::{Common, OutputFormat, PingArguments};
use crate::connection::{Purpose, connect, endpoint, over};
use crate::duration::microseconds;
use crate::failure::{Exit, Failure};
use crate::output;

/// `kvctl ping`.
pub(crate) fn ping(common: &Common, arguments: &PingArguments) -> Result<Exit, Failure> {
    let client = connect(common, Purpose::Read)?;
    let (fabric, description) = client.fabric()?;
    if common.output == OutputFormat::Text {
        let line = format!("{} {}\n", endpoint(common), over(fabric, &description));
        output::write(line.as_bytes(), Effect::No)?;
    }
    let mut controls = Vec::new();
    let mut reads = Vec::new();
    let mut sequence = 0;
    loop {
        sequence += 1;
        let began = Instant::now();
        let control = client.ping()?;
        let read = read_once(&client)?;
        match common.output {
            OutputFormat::Text => {
                let (control, read) = (microseconds(control), microseconds(read));
                let line = format!("{sequence}: control {control} µs, one READ of a bucket {read} µs\n");
                output::write(line.as_bytes(), Effect::No)?;
            }
            OutputFormat::Json => {
                let answer = json!({
                    "endpoint": endpoint(common),
                    "fabric": fabric,
                    "sequence": sequence,
                    "control_us": control.as_nanos() as f64 / 1000.0,
                    "read_us": read.as_nanos() as f64 / 1000.0,
                });
                output::write_json(&answer, Effect::No)?;
            }
        }
        controls.push(control);
        reads.push(read);
        if sequence == arguments.count {
            break;
        }
        // Without a count there is no summary to make, so nothing needs to be kept.
        if arguments.count == 0 {
            controls.clear();
            reads.clear();
        }
        std::thread::sleep(arguments.interval.saturating_sub(began.elapsed()));
    }
    if common.output == OutputFormat::Text && sequence > 1 {
        let summary = format!("control {}; READ {}\n", spread(&mut controls), spread(&mut reads));
        output::write(summary.as_bytes(), Effect::No)?;
    }
    Ok(Exit::Ok)
}

/// How long one READ takes: the first verb of a get.
fn read_once(client: &Client) -> Result<Duration, Failure> {
    let (result, trace) = client.explain(|session| session.get(b"kvctl ping"));
    result?;
    let first = trace.verbs.first();
    Ok(first.and_then(|verb| verb.completed?.checked_sub(verb.posted)).unwrap_or_default())
}

fn spread(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let (Some(first), Some(last)) = (times.first(), times.last()) else { return "n/a".into() };
    let median = times[times.len() / 2];
    format!("min/median/max {}/{}/{} µs", microseconds(*first), microseconds(median), microseconds(*last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_in_order() {
        let mut times: Vec<_> = [3, 1, 2].map(Duration::from_micros).into();
        assert_eq!(spread(&mut times), "min/median/max 1.0/2.0/3.0 µs");
        assert_eq!(spread(&mut [Duration::from_micros(7)]), "min/median/max 7.0/7.0/7.0 µs");
        assert_eq!(spread(&mut []), "n/a");
    }
}
