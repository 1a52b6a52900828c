//! How long operations take, in round trips: each operation's median divided by that of a raw 64-byte READ on the
//! same connection. `verb-ratios ENDPOINT [--rounds N] [--check-round-trips]`
//!
//! On a clock that repeats the ratios say what an operation costs in processor time on top of its round trips. On a
//! wire whose delay outweighs everything else they are the round trips themselves; `--check-round-trips` then
//! asserts that they are the design's, within 5 %.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sidestep_client::common::fabric::FabricKind;
use sidestep_client::{Client, Error};

/// An operation measured: its name, the design's round trips, and its times.
struct Series {
    name: &'static str,
    round_trips: f64,
    times: Vec<Duration>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut endpoint = None;
    let (mut rounds, mut check) = (300, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => rounds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(rounds),
            "--check-round-trips" => check = true,
            _ => endpoint = Some(argument),
        }
    }
    let Some(endpoint) = endpoint else {
        eprintln!("usage: verb-ratios ENDPOINT [--rounds N] [--check-round-trips]");
        return ExitCode::from(2);
    };
    match measure(&endpoint, rounds) {
        Ok(series) => report(series, check),
        Err(error) => {
            eprintln!("verb-ratios: {error}");
            ExitCode::FAILURE
        }
    }
}

/// All operations in turn, `rounds` times, so that whatever disturbs disturbs all alike.
fn measure(endpoint: &str, rounds: usize) -> Result<Vec<Series>, Error> {
    // On the repeatable clock time jumps ahead whenever the machine waits for its host, so nothing may be in a hurry.
    let patience = Duration::from_secs(600);
    let client = Client::builder(endpoint)?.timeout(patience).connect_timeout(patience).connect()?;
    let mut session = client.session()?;
    let (kind, description) = session.fabric()?;
    println!("{description}");
    if kind == FabricKind::Verbs {
        println!("64-byte values, 16-byte keys, {rounds} rounds");
    }
    let series = |name, round_trips| Series { name, round_trips, times: Vec::with_capacity(rounds) };
    let mut all = [
        series("raw READ, 64 B", 1.0),
        series("get, present", 2.0),
        series("get, absent", 1.0),
        series("insert", 2.0),
        series("put over a key", 3.0),
        series("delete", 3.0),
    ];
    let value = [7; 64];
    let mut found = Vec::with_capacity(64);
    // The first rounds touch memory for the first time and ask for chunks; they don't count.
    for round in 0..rounds + 8 {
        let key = format!("key {round:012}");
        let key = key.as_bytes();
        let mut times = [Duration::ZERO; 6];
        let mut time = |at: usize, session: &mut _, call: &mut dyn FnMut(&mut _) -> Result<(), Error>| {
            let began = Instant::now();
            call(session)?;
            times[at] = began.elapsed();
            Ok::<(), Error>(())
        };
        time(0, &mut session, &mut |session| session.probe(64))?;
        time(2, &mut session, &mut |session| session.get_into(key, &mut found).map(drop))?;
        time(3, &mut session, &mut |session| session.put(key, &value))?;
        time(1, &mut session, &mut |session| session.get_into(key, &mut found).map(drop))?;
        time(4, &mut session, &mut |session| session.put(key, &value))?;
        time(5, &mut session, &mut |session| session.delete(key).map(drop))?;
        if round >= 8 {
            for (series, time) in all.iter_mut().zip(times) {
                series.times.push(time);
            }
        }
    }
    Ok(all.into())
}

fn report(mut all: Vec<Series>, check: bool) -> ExitCode {
    let mut quantile = |at: usize, part: usize| {
        all[at].times.sort_unstable();
        let times = &all[at].times;
        times[(times.len() - 1) * part / 100].as_nanos() as f64 / 1000.0
    };
    let rows: Vec<(f64, f64)> = (0..6).map(|at| (quantile(at, 50), quantile(at, 99))).collect();
    println!(
        "{:<16} {:>10} {:>10} {:>13} {:>12}",
        "operation", "p50 us", "p99 us", "p50 / READ", "round trips"
    );
    let mut failed = false;
    for (series, (median, high)) in all.iter().zip(&rows) {
        let ratio = median / rows[0].0;
        let fits = (ratio / series.round_trips - 1.0).abs() <= 0.05;
        let verdict = if !check {
            ""
        } else if fits {
            " ok"
        } else {
            " not within 5 %"
        };
        failed |= check && !fits;
        println!(
            "{:<16} {median:>10.1} {high:>10.1} {ratio:>13.3} {:>12}{verdict}",
            series.name, series.round_trips
        );
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
