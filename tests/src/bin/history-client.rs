//! A client process whose calls are written down, to be killed, stopped and cut off; see `sidestep_tests::histories`.
//!
//! It works until it has made the calls that it was told to make, or until its standard input ends. A line `cut` there makes
//! it cut one of its own connections. It ends with 1 if something happened that must not happen, and says what.
//!
//! Built with the feature `simulation`, it makes the mistakes that `SIDESTEP_PLANT` names, as `Name,Name`.

use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sidestep_client::{Client, Error, Session};
use sidestep_tests::histories::{Alarm, Dice, Orders, USAGE, Worker};

/// Time for a server that is being restarted to be there again.
const CONNECT: Duration = Duration::from_secs(60);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let orders = match Orders::parse(std::env::args().skip(1)) {
        Ok(orders) => orders,
        Err(error) => {
            eprintln!("{error}\nusage: history-client {USAGE}");
            return ExitCode::from(2);
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    listen(&orders, &stop);
    match work(&orders, &stop) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("client {}: {trouble}", orders.client);
            ExitCode::FAILURE
        }
    }
}

/// All sessions, until they have ended. The first that has something to say stops the others.
fn work(orders: &Orders, stop: &AtomicBool) -> Result<(), String> {
    let client = patiently(|| {
        let builder = Client::builder(&orders.endpoint)?.timeout(orders.patience());
        builder.connect_timeout(CONNECT).name(format!("history-client {}", orders.client)).connect()
    });
    let client = client.map_err(|error| format!("can't connect: {error}"))?;
    let run = |number: u8| {
        plant()?;
        let session: Result<Session, _> = patiently(|| client.session());
        let session = session.map_err(|error| format!("can't open a session: {error}"))?;
        let alarm = |alarm: Alarm| format!("session {number}: {alarm}");
        Worker::new(session, number, orders).map_err(alarm)?.work(orders, stop).map_err(alarm)
    };
    std::thread::scope(|scope| {
        let start =
            |number| scope.spawn(move || run(number).inspect_err(|_| stop.store(true, Ordering::Relaxed)));
        let threads: Vec<_> = (0..orders.sessions).map(start).collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or(Err("a panic".into())));
        ended.fold(Ok(()), Result::and)
    })
}

/// A first connection is not tried again by itself, and the server may be between two lives.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let deadline = Instant::now() + CONNECT;
    loop {
        match attempt() {
            Err(error) if error.is_unreachable() && Instant::now() < deadline => std::thread::sleep(AGAIN),
            result => return result,
        }
    }
}

/// Follows what comes through standard input. Its end is the order to stop, also if whoever gave it has died.
fn listen(orders: &Orders, stop: &Arc<AtomicBool>) {
    let (stop, mut dice) = (Arc::clone(stop), Dice::new(orders.seed.wrapping_add(orders.client.into())));
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line.as_str() {
                "cut" => cut(&mut dice),
                other => eprintln!("unknown order `{other}`"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Shuts down one of this process's TCP connections, whichever: control, or a data path that is one. The other end sees it
/// end with whatever was sent before; what it still says is lost. A Unix socket is cut by nobody but its own process.
fn cut(dice: &mut Dice) {
    let (Ok(entries), connections) = (std::fs::read_dir("/proc/self/fd"), tcp_connections()) else { return };
    let is_connection = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| connections.contains(&target))
    };
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<libc::c_int>().ok();
    let sockets: Vec<_> = entries.flatten().filter(is_connection).filter_map(number).collect();
    if sockets.is_empty() {
        return;
    }
    let socket = sockets[dice.below(sockets.len() as u64) as usize];
    // The number may be another file's by now, which is then another socket, or refuses.
    // SAFETY: the call takes a number and nothing else, and touches no memory of this process.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

/// All TCP connections, as links to their files name them.
fn tcp_connections() -> Vec<PathBuf> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(std::fs::read_to_string);
    let tables: Vec<String> = tables.into_iter().flatten().collect();
    let inodes = tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(|line| {
        // The tenth column.
        line.split_whitespace().nth(9)
    });
    inodes.map(|inode| format!("socket:[{inode}]").into()).collect()
}

/// Makes this thread make the mistakes that the environment names.
#[cfg(feature = "simulation")]
fn plant() -> Result<(), String> {
    use sidestep_common::planted::{Fault, plant};
    let names = std::env::var("SIDESTEP_PLANT").unwrap_or_default();
    let find = |name: &str| {
        let fault = Fault::ALL.iter().find(|fault| fault.name() == name).copied();
        fault.ok_or_else(|| format!("SIDESTEP_PLANT names `{name}`, which is no mistake"))
    };
    let faults: Vec<_> =
        names.split(',').filter(|name| !name.is_empty()).map(find).collect::<Result<_, _>>()?;
    plant(&faults);
    Ok(())
}

/// No mistakes are compiled in.
#[cfg(not(feature = "simulation"))]
fn plant() -> Result<(), String> {
    match std::env::var("SIDESTEP_PLANT") {
        Err(_) => Ok(()),
        Ok(names) => Err(format!("SIDESTEP_PLANT is `{names}`, but this program was built without mistakes")),
    }
}
