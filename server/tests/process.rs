//! The real `kvserver`, as a process: flags, environment, file, signals, exit codes, and the word to systemd.

mod bed;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use bed::{Control, Folder, PATIENCE, hello};
use rustix::process::{Pid, Signal, kill_process};
use sidestep_common::fabric::FabricKind;
use sidestep_common::wire::{Request, Response};

fn kvserver() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvserver"));
    // Nothing of the developer's own environment.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SIDESTEP_") {
            command.env_remove(name);
        }
    }
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

fn small(transport: &str) -> Command {
    let mut command = kvserver();
    command.args(["-l", "127.0.0.1:0", "-m", "16M", "--hugepages", "off", "--admin-listen", "127.0.0.1:0"]);
    command.args(["--transport", transport]).env("SIDESTEP_DRAIN_MS", "100");
    command
}

/// A kvserver that is ready; killed if the test fails.
struct Process {
    child: Child,
    ready: String,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let mut process = Self { child, ready };
        if process.ready.is_empty() {
            let (code, log) = process.end();
            panic!("not ready, exit code {code:?}\n{log}");
        }
        process
    }

    /// The published `HOST:PORT`.
    fn endpoint(&self) -> &str {
        let start = self.ready.find("sidestep://").unwrap() + "sidestep://".len();
        self.ready[start..].split(' ').next().unwrap()
    }

    fn control(&self) -> SocketAddr {
        self.endpoint().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end: exit code and log.
    fn end(&mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        };
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status.code(), log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says that a test has nothing to show here, past the test harness's capture, so that the skip is seen and counted.
fn skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {reason}");
}

fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn line<'a>(text: &'a str, setting: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(setting)).unwrap_or_else(|| panic!("no {setting} in {text}"))
}

#[test]
fn flag_over_environment_over_file_over_default() {
    let folder = Folder::new("precedence");
    let file = folder.0.join("kvserver.toml");
    std::fs::write(&file, "lease-ms = 1000\ngrace-ms = 2000\nmemory = \"32M\"\nlisten = \"[::1]:7000\"\n")
        .unwrap();
    let mut command = kvserver();
    command.arg("--print-config").arg("--config").arg(&file);
    command.env("SIDESTEP_LEASE_MS", "1500").env("SIDESTEP_GRACE_MS", "2500").args(["--grace-ms", "2750"]);
    command.env("SIDESTEP_TOKEN", "do-not-print-me");
    let (code, text, _) = output(&mut command);
    assert_eq!(code, 0);
    for (setting, value, source) in [
        ("grace-ms", "2750", "flag"),
        ("lease-ms", "1500", "environment"),
        ("memory", "\"32M\"", "file"),
        ("listen", "\"[::1]:7000\"", "file"),
        ("max-sessions", "1024", "default"),
    ] {
        let found = line(&text, setting);
        assert!(found.starts_with(&format!("{setting} = {value} ")), "{found}");
        assert!(found.ends_with(&format!("# {source}")), "{found}");
    }
    assert!(line(&text, "# token").ends_with("# environment"));
    assert!(!text.contains("do-not-print-me"));
    // What is printed is a configuration file again.
    std::fs::write(&file, &text).unwrap();
    let (code, again, error) = output(kvserver().arg("--print-config").arg("--config").arg(&file));
    assert_eq!(code, 0, "{error}");
    assert!(line(&again, "grace-ms").starts_with("grace-ms = 2750"));
    assert!(line(&again, "admin-listen").ends_with("# file"));
}

/// Who commits can be said in all three places; a word that is none is refused with those that are.
#[test]
fn commits_are_chosen_by_flag_environment_or_file() {
    let folder = Folder::new("commits");
    let file = folder.0.join("kvserver.toml");
    std::fs::write(&file, "commits = \"atomics\"\n").unwrap();
    let printed = |command: &mut Command| {
        let (_, text, _) = output(command.arg("--print-config"));
        line(&text, "commits").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(printed(&mut kvserver()), "commits = \"auto\" # default");
    assert_eq!(printed(kvserver().arg("--config").arg(&file)), "commits = \"atomics\" # file");
    let with_both = || {
        let mut command = kvserver();
        command.arg("--config").arg(&file).env("SIDESTEP_COMMITS", "two-sided");
        command
    };
    assert_eq!(printed(&mut with_both()), "commits = \"two-sided\" # environment");
    assert_eq!(printed(with_both().args(["--commits", "auto"])), "commits = \"auto\" # flag");
    let (code, _, error) = output(kvserver().args(["--commits", "cpu", "--check-config"]));
    assert!(code == 2 && error.contains("two-sided") && error.contains("atomics"), "{error}");
}

#[test]
fn configurations_are_checked() {
    let folder = Folder::new("check");
    let file = folder.0.join("kvserver.toml");
    let (code, text, _) = output(kvserver().arg("--check-config"));
    assert_eq!((code, text.as_str()), (0, "the configuration is good\n"));
    for (content, named) in [
        ("memroy = \"1G\"\n", "memroy"),
        ("memory = \"1X\"\n", "1X"),
        ("threads = \"many\"\n", "many"),
        ("lease-ms = 5\n", "lease-ms is 5"),
        ("listen = 7480\n", "7480"),
        ("= broken", "line 1"),
    ] {
        std::fs::write(&file, content).unwrap();
        let (code, _, error) = output(kvserver().arg("--check-config").arg("--config").arg(&file));
        assert_eq!(code, 2, "{content}");
        assert!(error.contains(named), "{content}: {error}");
    }
    let (code, _, error) = output(kvserver().args(["--check-config", "--config", "/nonexistent/file"]));
    assert_eq!(code, 2);
    assert!(error.contains("/nonexistent/file"), "{error}");
    for (flags, named) in [
        (&["-m", "1M"][..], "4194304"),
        (&["-m", "-1"], "-1"),
        (&["-t", "0"], "threads is 0"),
        (&["-l", "localhost"], "localhost"),
        (&["--advertise", "0.0.0.0"], "0.0.0.0"),
        (&["--transport", "pigeon"], "pigeon"),
        (&["--max-value", "2M"], "2097152"),
        (&["--no-such-flag"], "--no-such-flag"),
        (&["--transport", "tcp", "-d", "mlx5_0"], "mlx5_0"),
    ] {
        let (code, _, error) = output(kvserver().arg("--check-config").args(flags));
        assert_eq!(code, 2, "{flags:?}");
        assert!(error.contains(named), "{flags:?}: {error}");
    }
    let (code, version, _) = output(kvserver().arg("--version"));
    assert_eq!((code, version.trim()), (0, concat!("kvserver ", env!("CARGO_PKG_VERSION"))));
}

/// Port 0 takes a free port and says which; a wildcard is never published (B4); IPv6 works.
#[test]
fn the_published_address_is_real() {
    for listen in ["0.0.0.0:0", "[::1]:0", "127.0.0.1:0"] {
        let mut command = kvserver();
        command.args(["-m", "8M", "--transport", "tcp", "--admin-listen", "off", "-l", listen]);
        let process = Process::start(&mut command);
        let address = process.control();
        assert!(!address.ip().is_unspecified() && address.port() != 0, "{}", process.ready);
        Control::tcp(address).hello(hello(&[FabricKind::Tcp]));
        assert!(process.ready.contains("admin off"), "{}", process.ready);
    }
    let mut command = small("tcp");
    let process = Process::start(command.args(["--advertise", "node-1.example"]));
    assert!(process.endpoint().starts_with("node-1.example:"), "{}", process.ready);
}

/// Without sessions the end is immediate; with one it takes the drain time and no longer. Either way: 0.
#[test]
fn signals_end_it_in_order() {
    let folder = Folder::new("signals");
    for signal in [Signal::TERM, Signal::INT] {
        let socket = folder.0.join("s.sock");
        let mut process = Process::start(small("auto").arg("--socket").arg(&socket));
        assert!(socket.exists());
        let mut control = Control::tcp(process.control());
        control.hello(hello(&[FabricKind::Tcp]));
        process.signal(signal);
        let (code, log) = process.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("stopped"), "{log}");
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "nothing is left behind");
    }
}

/// A second signal doesn't wait for sessions.
#[test]
fn a_second_signal_ends_it_at_once() {
    let mut process = Process::start(small("tcp").args(["--drain-ms", "600000"]));
    let mut control = Control::tcp(process.control());
    control.hello(hello(&[FabricKind::Tcp]));
    process.signal(Signal::TERM);
    bed::eventually("it drains", || {
        let heartbeat = Request::Heartbeat { epoch: 1, wants_epoch: false };
        matches!(control.ask(&heartbeat), Response::Heartbeat(pulse) if pulse.draining)
    });
    process.signal(Signal::TERM);
    let (code, log) = process.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn systemd_is_told() {
    let folder = Folder::new("notify");
    let path = folder.0.join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut bytes = [0; 1024];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let mut process = Process::start(small("tcp").env("NOTIFY_SOCKET", &path));
    let ready = heard();
    assert!(ready.lines().any(|line| line == "READY=1"), "{ready}");
    assert!(ready.contains(process.endpoint()), "{ready}");
    process.signal(Signal::TERM);
    assert!(heard().lines().any(|line| line == "STOPPING=1"));
    assert_eq!(process.end().0, Some(0));
}

#[test]
fn a_port_in_use_is_named() {
    let process = Process::start(&mut small("tcp"));
    let mut second = kvserver();
    second.args(["-m", "8M", "--transport", "tcp", "--admin-listen", "off", "-l", process.endpoint()]);
    let (code, _, error) = output(&mut second);
    assert_eq!(code, 1);
    assert!(error.contains(process.endpoint()), "{error}");
}

/// Who asks for RDMA gets RDMA or an error that lists what there is, never TCP (B5). A host with a card has
/// nothing to show here.
#[test]
fn verbs_without_a_device_is_an_error() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        skipped("verbs_without_a_device_is_an_error: this host has an RDMA device");
        return;
    }
    let (code, ready, error) = output(&mut small("verbs"));
    assert_eq!((code, ready.as_str()), (1, ""));
    assert!(error.contains("found: none"), "{error}");
    let (code, _, error) = output(small("auto").args(["--device", "nosuch"]));
    assert_eq!(code, 1);
    assert!(error.contains("nosuch") && error.contains("none"), "{error}");
    let process = Process::start(&mut small("auto"));
    assert!(process.ready.contains("fabrics shm+tcp"), "{}", process.ready);
}

/// Little lockable memory is no reason to fail for fabrics that lock none (A1).
#[test]
fn shm_and_tcp_need_no_locked_memory() {
    let folder = Folder::new("memlock");
    for transport in ["tcp", "shm"] {
        let plain = small(transport);
        let mut command = Command::new("prlimit");
        command.arg("--memlock=65536").arg(plain.get_program()).args(plain.get_args());
        command.arg("--socket").arg(folder.0.join("s.sock"));
        let mut process = Process::start(&mut command);
        process.signal(Signal::TERM);
        assert_eq!(process.end().0, Some(0));
    }
}

/// More memory than there is: an error at the start that names both numbers, and no SIGBUS later.
#[test]
fn memory_that_is_not_there_is_refused() {
    let mut command = kvserver();
    command.args(["-m", "1T", "--transport", "tcp", "--admin-listen", "off", "-l", "127.0.0.1:0"]);
    let (code, _, error) = output(&mut command);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("1099511627776"), "{error}");
}

#[test]
fn json_logs_are_json() {
    let mut process = Process::start(small("tcp").args(["--log-format", "json"]));
    process.signal(Signal::TERM);
    let (code, log) = process.end();
    assert_eq!(code, Some(0));
    let events: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    assert!(events.iter().any(|event| event["message"] == "ready" && event["endpoint"].is_string()), "{log}");
}

/// The unit in `deploy/` is one that systemd accepts, and the file beside it is a configuration.
#[test]
fn what_is_deployed_is_good() {
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let (code, _, error) =
        output(kvserver().arg("--check-config").arg("--config").arg(deploy.join("kvserver.toml")));
    assert_eq!(code, 0, "{error}");
    if Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).status().is_err() {
        skipped("what_is_deployed_is_good, in part: there is no systemd-analyze here");
        return;
    }
    let folder = Folder::new("unit");
    let unit = std::fs::read_to_string(deploy.join("kvserver.service")).unwrap();
    let path = folder.0.join("kvserver.service");
    // Where it is installed there is nothing yet, and systemd wants to find the program.
    std::fs::write(&path, unit.replace("/usr/bin/kvserver", env!("CARGO_BIN_EXE_kvserver"))).unwrap();
    let (code, said, complained) = output(Command::new("systemd-analyze").arg("verify").arg(&path));
    assert_eq!((code, said.as_str(), complained.as_str()), (0, "", ""));
}

/// Every line that the example file shows as a default is the default.
#[test]
fn the_example_file_shows_the_defaults() {
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let example = std::fs::read_to_string(deploy.join("kvserver.toml")).unwrap();
    let (_, defaults, _) = output(kvserver().arg("--print-config"));
    let mut shown = 0;
    for setting in [
        "hugepages",
        "transport",
        "commits",
        "admin-listen",
        "lease-ms",
        "grace-ms",
        "handshake-ms",
        "drain-ms",
        "max-sessions",
        "max-value",
        "log-format",
        "log-level",
        "listen",
        "memory",
    ] {
        let mut example = example.lines().map(|line| line.trim_start_matches("# "));
        let example = example.rfind(|line| line.starts_with(&format!("{setting} = ")));
        let default = line(&defaults, setting).split(" #").next().unwrap().trim_end();
        assert_eq!(example, Some(default));
        shown += 1;
    }
    assert_eq!(shown, 14);
}
