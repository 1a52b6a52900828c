//! stats.
//!
//! Always true: figures that the server gives and figures made of them are told apart in JSON; a share of nothing is
//! "n/a" and not a number.

use std::fmt::Write;

use serde::Serialize;
use sidestep_client::common::wire::Welcome;
use sidestep_client::{Effect, ServerStatistics};

use crate::arguments::{Common, OutputFormat};
use crate::connection::{Purpose, connect, endpoint};
use crate::failure::{Exit, Failure};
use crate::output;

/// What is shown.
#[derive(Debug, Serialize)]
struct Stats {
    endpoint: String,
    server: ServerStatistics,
    limits: Limits,
    derived: Derived,
}

/// What the server takes from a session.
#[derive(Debug, Serialize)]
struct Limits {
    key_bytes_max: u32,
    value_bytes_max: u32,
    lease_ms: u64,
    admin: Option<String>,
}

/// Made of the server's figures.
#[derive(PartialEq, Debug, Serialize)]
struct Derived {
    /// Share of the block pool that was granted, in percent.
    granted_percent: Option<f64>,
    /// Bytes of the region that are no block pool: superblock, directory, index.
    index_bytes: u64,
    /// CPU time of the server since its start, as a share of one core, in percent.
    cpu_percent: Option<f64>,
}

impl Derived {
    fn of(server: &ServerStatistics) -> Self {
        let percent = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64 * 100.0);
        let cpu_us = server.cpu_user_us.saturating_add(server.cpu_system_us);
        Self {
            granted_percent: percent(server.granted_bytes, server.block_pool_bytes),
            index_bytes: server.region_bytes.saturating_sub(server.block_pool_bytes),
            cpu_percent: percent(cpu_us, server.uptime_ms.saturating_mul(1000)),
        }
    }
}

/// `kvctl stats`.
pub(crate) fn stats(common: &Common) -> Result<Exit, Failure> {
    let client = connect(common, Purpose::Read)?;
    let server = client.server_statistics()?;
    let limits = client.with_session(|session| session.welcome().map(limits))?;
    let stats =
        Stats { endpoint: endpoint(common).to_owned(), derived: Derived::of(&server), server, limits };
    match common.output {
        OutputFormat::Json => output::write_json(&stats, Effect::No)?,
        OutputFormat::Text => output::write(text(&stats).as_bytes(), Effect::No)?,
    }
    Ok(Exit::Ok)
}

fn limits(welcome: &Welcome) -> Limits {
    Limits {
        key_bytes_max: welcome.key_bytes_max,
        value_bytes_max: welcome.value_bytes_max,
        lease_ms: welcome.lease_ms,
        admin: welcome.admin.clone(),
    }
}

fn text(stats: &Stats) -> String {
    let Stats { endpoint, server, limits, derived } = stats;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<22} {value}");
    };
    line("server", format!("{} at {endpoint}", server.version));
    line("incarnation", format!("{:#018x}", server.incarnation));
    line("uptime", format!("{:.1} s", server.uptime_ms as f64 / 1000.0));
    for (kind, description) in &server.fabrics {
        line(
            kind.name(),
            description.trim_start_matches(kind.name()).trim_start_matches([':', ' ']).to_owned(),
        );
    }
    line("admin", limits.admin.clone().unwrap_or_else(|| "off".into()));
    line("region", bytes(server.region_bytes));
    line("  index", format!("{} in {} segments", bytes(derived.index_bytes), server.segment_count));
    line(
        "    serving",
        format!(
            "{} segments of at most {}, {} retired",
            server.segments_serving, server.segments_serving_max, server.segments_retired
        ),
    );
    line(
        "    rebuilds",
        format!("{} since the start, {} of them into two", server.rebuilds_total, server.splits_total),
    );
    line("  block pool", bytes(server.block_pool_bytes));
    line("    granted", format!("{}, {}", bytes(server.granted_bytes), percent(derived.granted_percent)));
    line("    of no class", bytes(server.free_bytes));
    line("    kept for deletes", bytes(server.reserve_bytes));
    line(
        "    chunks of nobody",
        format!("{}, and {} that wait for a sweep", server.ownerless_chunks, server.orphan_chunks),
    );
    line(
        "    sweeps",
        format!("{} since the start, {} chunks swept", server.sweeps_total, server.swept_chunks_total),
    );
    line("epoch", format!("{}, acknowledged by all: {}", server.epoch, server.quiesced_epoch));
    line(
        "sessions",
        format!(
            "{} now (this one too), {} since the start, {} fenced",
            server.session_count, server.sessions_total, server.sessions_fenced_total
        ),
    );
    line("control messages", server.control_messages_total.to_string());
    line(
        "server CPU",
        format!(
            "{:.3} s user, {:.3} s system; {} of a core since the start",
            server.cpu_user_us as f64 / 1e6,
            server.cpu_system_us as f64 / 1e6,
            percent(derived.cpu_percent)
        ),
    );
    line("resident", bytes(server.resident_bytes));
    line(
        "limits",
        format!(
            "keys of {} bytes, values of {} bytes, lease of {} ms",
            limits.key_bytes_max, limits.value_bytes_max, limits.lease_ms
        ),
    );
    text
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "n/a".into(), |value| format!("{value:.2} %"))
}

/// A size for people.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(value.fract() != 0.0);
    format!("{value:.decimals$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_figures_are_right() {
        let server = ServerStatistics {
            region_bytes: 1000,
            block_pool_bytes: 800,
            granted_bytes: 200,
            reserve_bytes: 100,
            uptime_ms: 10,
            cpu_user_us: 1000,
            cpu_system_us: 1500,
            ..ServerStatistics::default()
        };
        let derived = Derived { granted_percent: Some(25.0), index_bytes: 200, cpu_percent: Some(25.0) };
        assert_eq!(Derived::of(&server), derived);
    }

    /// A server that has just started, or says nonsense, makes no figure wrap and no share of nothing.
    #[test]
    fn nothing_wraps_and_nothing_is_divided_by_zero() {
        let none = Derived::of(&ServerStatistics::default());
        assert_eq!((none.granted_percent, none.cpu_percent), (None, None));
        let odd = ServerStatistics {
            granted_bytes: u64::MAX,
            cpu_user_us: u64::MAX,
            cpu_system_us: 1,
            uptime_ms: u64::MAX,
            ..ServerStatistics::default()
        };
        assert_eq!(Derived::of(&odd).index_bytes, 0);
    }

    #[test]
    fn sizes_are_readable() {
        for (value, shown) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1 << 30, "1 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes(value), shown);
        }
    }
}
