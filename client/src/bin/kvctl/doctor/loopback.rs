//! A READ and a CAS over each fabric, to this process itself.
//!
//! Always true: the memory node's side and the client's side are those of the real server and client; only the region
//! is small and nobody else's. Whatever hangs ends at the deadline.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidestep_client::common::fabric::shm::ShmTarget;
use sidestep_client::common::fabric::tcp::TcpTarget;
use sidestep_client::common::fabric::{
    Batch, BatchId, ConnectOptions, Fabric, Join, Reply, Rights, SessionId, Target, Verb, connect,
};
use sidestep_client::common::layout::Offset;
use sidestep_client::common::memory::Mapping;
use sidestep_client::common::wire::Preamble;
use sidestep_client::{DeviceChoice, FabricKind};

use super::facts::{Cards, Loopback, LoopbackTimes, Outcome};
use super::host;

/// Tries every fabric that this host has.
pub(super) fn run(cards: &Cards, wanted: &DeviceChoice, timeout: Duration) -> Vec<Loopback> {
    let options = ConnectOptions {
        peer: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        region_bytes: 0,
        rights: Rights::ReadWrite,
        verbs_in_flight_max: 16,
        buffer_limit_bytes: 1 << 20,
        device: wanted.clone(),
        deadline: Instant::now() + timeout,
    };
    let mut loopbacks =
        vec![outcome(FabricKind::Shm, shm(&options)), outcome(FabricKind::Tcp, tcp(&options))];
    // Without a device that could be used there is nothing to try, and no fault in that.
    if matches!(cards, Cards::Listed { choice: Outcome::Ok(_), .. }) {
        loopbacks.insert(0, outcome(FabricKind::Verbs, verbs(wanted)));
    }
    loopbacks
}

fn outcome(fabric: FabricKind, result: Result<LoopbackTimes, String>) -> Loopback {
    let outcome = match result {
        Ok(times) => Outcome::Ok(times),
        Err(reason) => Outcome::Error(reason),
    };
    Loopback { fabric, outcome }
}

/// A socket in the file system, gone when dropped.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn shm(options: &ConnectOptions) -> Result<LoopbackTimes, String> {
    let mapping = Arc::new(host::small_region()?);
    let socket = SocketFile(std::env::temp_dir().join(format!("kvctl-doctor-{}.sock", std::process::id())));
    let listener =
        UnixListener::bind(&socket.0).map_err(|error| format!("{}: {error}", socket.0.display()))?;
    let target = Arc::new(ShmTarget::new(Arc::clone(&mapping), path(&socket.0)?));
    let join = target.admit(SESSION, Rights::ReadWrite)?;
    let acceptor = Arc::clone(&target);
    // If the client never comes, the thread ends with the process.
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let _ = stream.set_read_timeout(Some(PREAMBLE_TIMEOUT));
        if stream.read_exact(&mut [0; Preamble::BYTES]).is_ok() {
            let _ = acceptor.attach(stream);
        }
    });
    let result = probe(&join, &mapping, options);
    // The connection is the target's, and must outlive the probe even if the acceptor is done long before.
    drop(target);
    result
}

fn tcp(options: &ConnectOptions) -> Result<LoopbackTimes, String> {
    let mapping = Arc::new(host::small_region()?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    let target = TcpTarget::start(Arc::clone(&mapping), 1).map_err(|error| error.to_string())?;
    target.advertise(None, port);
    let join = target.admit(SESSION, Rights::ReadWrite)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let _ = stream.set_read_timeout(Some(PREAMBLE_TIMEOUT));
            if stream.read_exact(&mut [0; Preamble::BYTES]).is_ok() {
                let _ = target.attach(stream);
            }
        });
        let result = probe(&join, &mapping, options);
        // Should the client not have come, the thread is not to wait for ever.
        drop(TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), PREAMBLE_TIMEOUT));
        result
    })
}

#[cfg(feature = "verbs")]
fn verbs(wanted: &DeviceChoice) -> Result<LoopbackTimes, String> {
    let report = sidestep_client::common::fabric::verbs::loopback_check(wanted, None);
    let report = report.map_err(|error| error.to_string())?;
    let nanoseconds = |duration: Duration| duration.as_nanos() as u64;
    Ok(LoopbackTimes { read_ns: nanoseconds(report.read), cas_ns: nanoseconds(report.compare_swap) })
}

#[cfg(not(feature = "verbs"))]
fn verbs(_wanted: &DeviceChoice) -> Result<LoopbackTimes, String> {
    Err("not built in".into())
}

/// The client sends its preamble at once.
const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(1);

fn path(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is no text", path.display()))
}

const SESSION: SessionId = SessionId(1);

/// Any word but the region's first.
const WORD: Offset = Offset(4096);

/// Joins, and checks that a CAS swaps once, fails the second time, and that a READ sees what it did.
fn probe(join: &Join, mapping: &Mapping, options: &ConnectOptions) -> Result<LoopbackTimes, String> {
    let options = ConnectOptions { region_bytes: mapping.bytes(), ..options.clone() };
    let mut fabric = connect(join, &options).map_err(|error| error.to_string())?;
    let swap = |expected, desired| Verb::CompareSwap { remote: WORD, expected, desired };
    // The first verb pays for pages that were never touched; the second is the one to time.
    let (first, _) = perform(&mut *fabric, swap(0, 7), options.deadline)?;
    let (second, cas) = perform(&mut *fabric, swap(0, 9), options.deadline)?;
    let (Reply::Old(0), Reply::Old(7)) = (&first, &second) else {
        return Err(format!("two CAS of the same word gave {first:?} and {second:?} instead of 0 and 7"));
    };
    let into = fabric.buffers().take(64).map_err(|error| error.to_string())?;
    let (reply, read) = perform(&mut *fabric, Verb::Read { remote: WORD, into }, options.deadline)?;
    let Reply::Read(buffer) = reply else { return Err(format!("a READ gave {reply:?}")) };
    let is_right = buffer.as_slice()[..8] == 7u64.to_le_bytes();
    fabric.buffers().recycle(buffer);
    if !is_right {
        return Err("a READ does not see what a CAS wrote".into());
    }
    Ok(LoopbackTimes { read_ns: read.as_nanos() as u64, cas_ns: cas.as_nanos() as u64 })
}

/// Posts one verb and waits for it.
fn perform(fabric: &mut dyn Fabric, verb: Verb<'_>, deadline: Instant) -> Result<(Reply, Duration), String> {
    let name = verb.name();
    let began = Instant::now();
    let mut batches = [Batch { id: BatchId(1), verbs: [verb].into_iter().collect(), silent: false }];
    fabric.post(&mut batches).map_err(|error| error.to_string())?;
    let mut completions = Vec::new();
    while fabric.poll(&mut completions) == 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("no completion of a {name} in time"));
        }
        fabric.wait(left);
    }
    let took = began.elapsed();
    let completion = completions.remove(0);
    let replies = completion.result.map_err(|failure| failure.to_string())?;
    let reply = replies.into_iter().next().ok_or_else(|| format!("a {name} without a reply"))?;
    Ok((reply, took))
}
