//! The client processes of a run.
//!
//! Always true: none outlives the fleet. No two processes of a run have one number, so no two logs one name and no two
//! values one number.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::log::LogFile;
use super::orders::Orders;
use super::record::RECORD_BYTES;
use super::trouble::Trouble;
use crate::system::{binary, is_stopped};

/// A client that was told to stop has ended its calls long before.
const RETIRE: Duration = Duration::from_secs(120);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// The client processes of a run.
#[derive(Debug)]
pub struct Fleet {
    /// Orders of the next process.
    orders: Orders,
    /// Mistakes that all make.
    plant: &'static str,
    members: Vec<Member>,
    /// Of all processes, those that have ended too.
    logs: Vec<LogFile>,
}

/// A process.
#[derive(Debug)]
struct Member {
    number: u16,
    child: Child,
    stdin: Option<ChildStdin>,
    /// Since when it stands still.
    stopped: Option<Instant>,
    errors: PathBuf,
}

impl Fleet {
    /// No process yet. All will have `orders`, numbers from that of `orders` on, and make the mistakes that `plant` names.
    pub const fn new(orders: Orders, plant: &'static str) -> Self {
        Self { orders, plant, members: Vec::new(), logs: Vec::new() }
    }

    /// Starts a process.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start(&mut self) {
        let orders = &self.orders;
        let errors = orders.directory.join(format!("client-{}.stderr", orders.client));
        let mut command = Command::new(binary("history-client"));
        if !self.plant.is_empty() {
            command.env("SIDESTEP_PLANT", self.plant);
        }
        let mut child = command
            .args(orders.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(&errors).expect("a file for what it says"))
            .spawn()
            .expect("history-client starts");
        self.logs.extend((0..orders.sessions).map(|session| orders.log(session)));
        let stdin = child.stdin.take();
        self.members.push(Member { number: orders.client, child, stdin, stopped: None, errors });
        self.orders.client += 1;
    }

    /// Orders for somebody else who works in this run, with a number that no process has.
    pub fn orders_for_another(&mut self) -> Orders {
        let orders = self.orders.clone();
        self.orders.client += 1;
        self.logs.push(orders.log(0));
        orders
    }

    /// Processes.
    pub const fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Those that don't stand still.
    pub fn running(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|index| self.members[*index].stopped.is_none()).collect()
    }

    /// Kills one with SIGKILL; it has no moment to do anything.
    ///
    /// # Panics
    /// If it can't be killed.
    pub fn kill(&mut self, index: usize) {
        let mut member = self.members.swap_remove(index);
        member.child.kill().expect("it can be killed");
        member.child.wait().expect("it ends");
    }

    /// Stops one with SIGSTOP, wherever it is.
    ///
    /// # Errors
    /// If it ended before.
    pub fn stop(&mut self, index: usize) -> Result<(), Trouble> {
        let member = &mut self.members[index];
        member.signal(Signal::STOP);
        while !is_stopped(member.child.id()) {
            member.check_running()?;
            std::thread::sleep(LOOK);
        }
        member.stopped = Some(Instant::now());
        Ok(())
    }

    /// Lets those go on that have stood still for `time`; how many there were.
    pub fn resume(&mut self, time: Duration) -> u64 {
        let is_due = |member: &&mut Member| member.stopped.is_some_and(|since| since.elapsed() >= time);
        let due = self.members.iter_mut().filter(is_due).map(|member| {
            member.stopped = None;
            member.signal(Signal::CONT);
        });
        due.count() as u64
    }

    /// Has one cut one of its connections.
    pub fn cut(&mut self, index: usize) {
        use std::io::Write;
        if let Some(stdin) = &mut self.members[index].stdin {
            // One that ended meanwhile is noticed otherwise.
            let _ = stdin.write_all(b"cut\n");
        }
    }

    /// Records in all logs so far: how far the run is.
    pub fn records(&self) -> u64 {
        let bytes = |log: &LogFile| std::fs::metadata(&log.path).map_or(0, |file| file.len());
        self.logs.iter().map(bytes).sum::<u64>() / RECORD_BYTES as u64
    }

    /// All logs, those of processes that have ended too. A process may have ended before it began one.
    pub fn logs(&self) -> &[LogFile] {
        &self.logs
    }

    /// No process ends by itself, unless something is wrong.
    ///
    /// # Errors
    /// What the one said that did.
    pub fn check_running(&mut self) -> Result<(), Trouble> {
        self.members.iter_mut().try_for_each(Member::check_running)
    }

    /// Tells all to end, and waits until they have.
    ///
    /// # Errors
    /// If one does not end well.
    pub fn retire(&mut self) -> Result<(), Trouble> {
        self.resume(Duration::ZERO);
        self.members.iter_mut().for_each(|member| drop(member.stdin.take()));
        let deadline = Instant::now() + RETIRE;
        while let Some(member) = self.members.last_mut() {
            match member.child.try_wait().expect("it can be waited for") {
                Some(status) if status.success() => drop(self.members.pop()),
                None if Instant::now() < deadline => std::thread::sleep(LOOK),
                None => {
                    return Err(Trouble::Standstill { seconds: RETIRE.as_secs(), records: self.records() });
                }
                Some(_) => member.check_running()?,
            }
        }
        Ok(())
    }
}

impl Member {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it was not waited for");
    }

    fn check_running(&mut self) -> Result<(), Trouble> {
        let Some(status) = self.child.try_wait().expect("it can be waited for") else { return Ok(()) };
        let said = std::fs::read_to_string(&self.errors).unwrap_or_default();
        Err(Trouble::Client { client: self.number, status, said: said.trim().to_owned() })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A process that stands still can be killed too; both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
