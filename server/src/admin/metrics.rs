//! The figures as Prometheus text, format 0.0.4.
//!
//! Always true: every metric has its HELP and TYPE before its samples, and counters never go down.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use sidestep_common::layout::FORMAT_VERSION;
use sidestep_common::wire::PROTOCOL_VERSION;

use crate::node::{Node, Serving, State};
use crate::usage::Usage;

/// Text under construction.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string can't fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.sample(name, "", value);
    }
}

/// All figures of the node.
pub(super) fn render(node: &Node) -> String {
    let mut text = Text(String::with_capacity(4096));
    process(&mut text, node);
    text.head("sidestep_build_info", "gauge", "What was built; always 1.");
    let labels = format!(
        "{{version=\"{}\",protocol=\"{PROTOCOL_VERSION}\",format=\"{FORMAT_VERSION}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    text.sample("sidestep_build_info", &labels, 1);
    let ready = u8::from(node.state() == State::Ready);
    text.gauge("sidestep_ready", "Whether clients are served.", ready);
    let counters = &node.counters;
    for (name, help, counter) in [
        ("sidestep_control_messages_total", "Control messages answered.", &counters.control_messages),
        ("sidestep_refusals_total", "Requests refused.", &counters.refusals),
        (
            "sidestep_failed_handshakes_total",
            "Connections turned away before they were anything.",
            &counters.failed_handshakes,
        ),
    ] {
        text.counter(name, help, counter.load(Ordering::Relaxed));
    }
    if let Some(serving) = node.serving() {
        region(&mut text, serving);
    }
    text.0
}

fn process(text: &mut Text, node: &Node) {
    let usage = Usage::now();
    let (user, system) = (usage.user.as_secs_f64(), usage.system.as_secs_f64());
    let help = "Processor time of the process, in seconds.";
    text.counter("process_cpu_seconds_total", help, format_args!("{:.6}", user + system));
    let help = "Processor time of the process in user mode, in seconds.";
    text.counter("sidestep_cpu_user_seconds_total", help, format_args!("{user:.6}"));
    let help = "Processor time of the process in the kernel, in seconds.";
    text.counter("sidestep_cpu_system_seconds_total", help, format_args!("{system:.6}"));
    let help = "Resident memory, the region included, in bytes.";
    text.gauge("process_resident_memory_bytes", help, usage.resident_bytes);
    let start = node.started_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let help = "Start of the process, in seconds since 1970.";
    text.gauge("process_start_time_seconds", help, format_args!("{start:.3}"));
}

fn region(text: &mut Text, serving: &Serving) {
    let geometry = serving.region.superblock.geometry;
    let accounts = serving.pool().accounts();
    text.gauge("sidestep_region_bytes", "Bytes of the region.", geometry.region_bytes);
    text.gauge("sidestep_index_segments", "Segments of the index.", geometry.segment_count);
    for (name, help, value) in [
        ("sidestep_block_pool_bytes", "Bytes of the block pool.", accounts.pool_bytes),
        (
            "sidestep_block_granted_bytes",
            "Bytes cut up for size classes, with or without an owner.",
            accounts.granted_bytes(),
        ),
        ("sidestep_block_free_bytes", "Bytes of no size class, without the reserve.", accounts.free_bytes),
        ("sidestep_block_reserve_bytes", "Bytes kept for deletes.", accounts.reserve_bytes),
        (
            "sidestep_memory_wanted",
            "Whether sessions are asked to give back what they don't need.",
            u64::from(serving.wants_memory()),
        ),
    ] {
        text.gauge(name, help, value);
    }
    let states = [
        ("session", accounts.session),
        ("returned", accounts.returned),
        ("orphan", accounts.orphan),
        ("ownerless", accounts.ownerless),
    ];
    let help =
        "Bytes cut up for size classes: of sessions, given back a moment ago, of ended sessions, of nobody.";
    text.head("sidestep_block_state_bytes", "gauge", help);
    for (state, share) in states {
        text.sample("sidestep_block_state_bytes", &format!("{{state=\"{state}\"}}"), share.bytes);
    }
    text.head("sidestep_chunks", "gauge", "Chunks and extents by who has them.");
    for (state, share) in states {
        text.sample("sidestep_chunks", &format!("{{state=\"{state}\"}}"), share.chunks);
    }
    index(text, serving);
    sweeps(text, serving, accounts.swept_total);
    sessions(text, serving);
    if let Some(tcp) = &serving.targets.tcp {
        let counters = tcp.counters();
        for (name, help, value) in [
            ("sidestep_tcp_verbs_total", "Verbs that threads of this process executed.", counters.verbs),
            ("sidestep_tcp_received_bytes_total", "Bytes received for verbs.", counters.bytes_received),
            ("sidestep_tcp_sent_bytes_total", "Bytes sent for verbs.", counters.bytes_sent),
            ("sidestep_tcp_malformed_total", "Connections ended by malformed frames.", counters.malformed),
            (
                "sidestep_tcp_refused_total",
                "Connections ended by a refused ticket or verb.",
                counters.refused,
            ),
        ] {
            text.counter(name, help, value);
        }
    }
}

fn index(text: &mut Text, serving: &Serving) {
    let growth = serving.growth.figures();
    let max = serving.region.superblock.geometry.directory_entries();
    for (name, help, value) in [
        ("sidestep_segments_serving", "Segments that the directory names.", growth.segments_serving),
        ("sidestep_segments_serving_max", "The most segments that the directory can name.", max),
        (
            "sidestep_segments_retired",
            "Segments that were replaced and wait until nobody can use them any more.",
            growth.segments_retired,
        ),
    ] {
        text.gauge(name, help, value);
    }
    text.counter("sidestep_rebuilds_total", "Rebuilds of segments.", growth.rebuilds_total);
    text.counter("sidestep_splits_total", "Rebuilds that made two segments of one.", growth.splits_total);
    text.counter(
        "sidestep_unfit_slots_total",
        "Slots whose block did not fit when their segment was to be split.",
        growth.unfit_total,
    );
    let (newest, quiesced) = {
        let epochs = serving.epochs();
        (epochs.newest(), epochs.quiesced())
    };
    text.gauge("sidestep_epoch", "The newest epoch.", newest);
    text.gauge("sidestep_epoch_quiesced", "The newest epoch that every session has acknowledged.", quiesced);
}

fn sweeps(text: &mut Text, serving: &Serving, chunks_total: u64) {
    let is_up = u8::from(serving.janitor_is_up.load(Ordering::Relaxed));
    text.gauge(
        "sidestep_janitor_up",
        "Whether the thread runs that recycles memory and grows the index.",
        is_up,
    );
    let figures = serving.sweeps().figures();
    for (name, help, value) in [
        ("sidestep_sweeps_total", "Scans of the whole index.", figures.sweeps_total),
        ("sidestep_sessions_swept_total", "Ended sessions that were swept.", figures.sessions_total),
        ("sidestep_chunks_swept_total", "Chunks of ended sessions that were swept.", chunks_total),
        (
            "sidestep_blocks_found_total",
            "Lost blocks that sweeps found in chunks without an owner.",
            figures.blocks_found_total,
        ),
    ] {
        text.counter(name, help, value);
    }
    let seconds = |duration: Duration| format!("{:.6}", duration.as_secs_f64());
    let help = "Time spent scanning the index, in seconds.";
    text.counter("sidestep_sweep_scan_seconds_total", help, seconds(figures.scan_total));
    let help = "Sum of the times from the notice of a session's end until it was swept, in seconds.";
    text.counter("sidestep_sweep_delay_seconds_total", help, seconds(figures.delay_total));
    let help = "The last time from the notice of a session's end until it was swept, in seconds.";
    text.gauge("sidestep_sweep_delay_last_seconds", help, seconds(figures.last_delay));
    let help = "The longest time from the notice of a session's end until it was swept, in seconds.";
    text.gauge("sidestep_sweep_delay_max_seconds", help, seconds(figures.max_delay));
}

fn sessions(text: &mut Text, serving: &Serving) {
    let (living, lingering, opened, fenced) = {
        let sessions = serving.sessions();
        let lingering = sessions.lingering().len();
        (sessions.living_count(), lingering, sessions.opened_total(), sessions.fenced_total())
    };
    text.gauge("sidestep_sessions", "Sessions at the moment.", living);
    let help = "Sessions that are over but can't be fenced while their processes live.";
    text.gauge("sidestep_sessions_lingering", help, lingering);
    text.counter("sidestep_sessions_total", "Sessions since the start.", opened);
    text.counter("sidestep_sessions_fenced_total", "Sessions fenced since the start.", fenced);
    text.head("sidestep_connections", "gauge", "Data connections at the moment.");
    for target in serving.targets.all() {
        let labels = format!("{{fabric=\"{}\"}}", target.kind());
        text.sample("sidestep_connections", &labels, target.connection_count());
    }
}
