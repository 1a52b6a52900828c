//! The process `kvserver`: logs, signals, and the word to systemd.
//!
//! Always true: SIGTERM and SIGINT end it with 0 at any time, also while it starts; the first one lets sessions
//! leave, a second one ends at once.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::level_filters::LevelFilter;

use crate::config::{ByteSize, Config, LogFormat};
use crate::server::{Running, Server, StartError};

/// Exit code of a failure; 2 is for usage and configuration.
const FAILURE: u8 = 1;
const USAGE: u8 = 2;

/// Runs a server until a signal ends it.
pub fn run(config: Config) -> ExitCode {
    start_logs(&config);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&StartError::Threads(error)),
    };
    let json = config.log_format == LogFormat::Json;
    runtime.block_on(async {
        let mut signals = match Signals::catch() {
            Ok(signals) => signals,
            Err(error) => return fail(&StartError::Threads(error)),
        };
        let starting = tokio::task::spawn_blocking(move || Server::start(config));
        let started = tokio::select! {
            started = starting => started,
            name = signals.next() => end_at_once(name),
        };
        let running = match started {
            Ok(Ok(running)) => running,
            Ok(Err(error)) => return fail(&error),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        say_ready(&running, json);
        let name = signals.next().await;
        tracing::info!(signal = name, "stopping; sessions have a moment to leave");
        tell_systemd(&[sd_notify::NotifyState::Stopping]);
        let socket = running.socket().map(std::path::Path::to_owned);
        let stopping = tokio::task::spawn_blocking(move || running.shutdown());
        tokio::select! {
            left = stopping => tracing::info!(fenced = left.unwrap_or(0), "stopped"),
            name = signals.next() => {
                if let Some(socket) = socket {
                    let _ = std::fs::remove_file(socket);
                }
                end_at_once(name)
            }
        }
        ExitCode::SUCCESS
    })
}

/// The signals that end the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

fn end_at_once(signal: &str) -> ! {
    tracing::warn!(signal, "ending at once");
    std::process::exit(0)
}

fn fail(error: &StartError) -> ExitCode {
    tracing::error!("{error}");
    let code = if matches!(error, StartError::Config(_)) { USAGE } else { FAILURE };
    ExitCode::from(code)
}

/// Logs go to standard error, so that standard output has the ready line alone.
fn start_logs(config: &Config) {
    let level = LevelFilter::from(config.log_level);
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    // A second call, by a test in the same process, changes nothing.
    let _ = match config.log_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_target(false).try_init(),
    };
}

fn say_ready(running: &Running, json: bool) {
    let node = running.node();
    let Some(serving) = node.serving() else { unreachable!("a started server serves") };
    for reason in serving.plan.reasons() {
        tracing::info!(fabric = %reason.fabric, served = reason.served, reason = reason.reason, "fabric");
    }
    if serving.plan.has_two_sided_commits() {
        let commits = serving.plan.commits();
        tracing::warn!(commits, "this server's CPU is in the path of every write; reads stay one-sided");
    }
    tracing::info!(memory = serving.mapping.describe(), "region");
    let admin = running.admin().map_or("off".to_owned(), |admin| format!("http://{admin}"));
    if json {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            endpoint = running.endpoint(),
            fabrics = serving.plan.describe(),
            memory = serving.mapping.describe(),
            admin,
            "ready"
        );
    }
    // Nobody may read it; that is no reason to stop.
    let _ = writeln!(
        std::io::stdout(),
        "kvserver {} ready: {}  fabrics {}  region {}  admin {admin}",
        env!("CARGO_PKG_VERSION"),
        running.endpoint(),
        serving.plan.describe(),
        ByteSize(serving.mapping.bytes()),
    );
    tell_systemd(&[
        sd_notify::NotifyState::Ready,
        sd_notify::NotifyState::Status(&format!("serving {}", running.endpoint())),
    ]);
}

/// Without a service manager there is nobody to tell, and that is no error.
fn tell_systemd(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
