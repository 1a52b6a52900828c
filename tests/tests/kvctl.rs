//! kvctl as people and scripts use it, against a kvserver of its own, on every fabric.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sidestep_client::FabricKind;
use sidestep_tests::cases;
use sidestep_tests::system::{Process, binary, run_suite, until};

fn main() {
    run_suite(&cases![
        awkward_keys_and_values_come_back_byte_for_byte,
        keys_and_values_have_their_limits,
        exit_codes_are_as_documented,
        results_and_messages_are_json_if_asked,
        explain_shows_what_each_operation_costs,
        a_reader_that_goes_away_is_no_failure,
        an_interrupt_ends_it_at_once,
        doctor_answers_for_this_host_and_the_server,
        fsck_says_whether_a_region_or_its_dump_is_sound,
    ])
}

/// kvctl, pointed at a server.
struct Kvctl {
    server: Process,
    fabric: FabricKind,
}

impl Kvctl {
    fn start(fabric: FabricKind) -> Self {
        Self { server: Process::kvserver(fabric, 0, &["-m", "64M"]), fabric }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("kvctl"));
        command.env("SIDESTEP_ENDPOINT", self.server.endpoint());
        // Later ones win, so a test may set its own.
        command.args(["--fabric", self.fabric.name()]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// With `input` on standard input.
    fn feed(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        // What refuses a value stops reading it.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    /// The one line of JSON on standard output, and the exit code.
    fn json(&self, arguments: &[&str]) -> (Value, i32) {
        let output = self.run(&[arguments, &["-o", "json"]].concat());
        let value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"));
        (value, output.status.code().unwrap())
    }
}

#[track_caller]
fn assert_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn escape(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// Keys that broke other stores (zero bytes, blanks, line ends, bytes that are no text, a path, a letter composed and
/// decomposed) are all different keys, and their values, which are as awkward, come back with nothing added.
fn awkward_keys_and_values_come_back_byte_for_byte(fabric: FabricKind) {
    let kvctl = Kvctl::start(fabric);
    let keys = sidestep_tests::AWKWARD_KEYS;
    let value = |key: &[u8]| [b"\n\0value of ".as_slice(), key, &[0xff, b'\n']].concat();
    for key in keys {
        let output = kvctl.feed(&["put", "--key-format", "hex", &hex(key), "-"], &value(key));
        assert_code(&output, 0);
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    for key in keys {
        let output = kvctl.run(&["get", "--key-format", "escape", &escape(key)]);
        assert_code(&output, 0);
        assert_eq!(output.stdout, value(key), "{}", hex(key));
        let (json, code) = kvctl.json(&["get", "--key-format", "hex", &hex(key)]);
        assert_eq!((code, &json["value_encoding"]), (0, &Value::from("base64")));
        let encoding = if std::str::from_utf8(key).is_ok() { "utf8" } else { "base64" };
        assert_eq!(json["key_encoding"], encoding);
    }
    // As plain arguments, where that can be; and a value from an argument and to a file.
    assert_code(&kvctl.run(&["put", "a b", "--value-format", "escape", "\\0\\xff"]), 0);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("value");
    let output = kvctl.run(&["get", "a b", "--output-file", file.to_str().unwrap()]);
    assert_code(&output, 0);
    assert!(output.stdout.is_empty());
    assert_eq!(std::fs::read(&file).unwrap(), [0, 0xff]);
    assert_code(&kvctl.run(&["put", "from file", "--file", file.to_str().unwrap()]), 0);
    assert_eq!(kvctl.run(&["get", "from file"]).stdout, [0, 0xff]);
    assert_code(&kvctl.run(&["get", "absent", "--output-file", file.to_str().unwrap()]), 1);
    assert_eq!(std::fs::read(&file).unwrap(), [0, 0xff], "an absent key leaves the file alone");
}

/// Keys of 1 and 1024 bytes and values of 0 bytes and 1 MiB work; one byte less or more is refused with the value and
/// the limit, and nothing is stored.
fn keys_and_values_have_their_limits(fabric: FabricKind) {
    let kvctl = Kvctl::start(fabric);
    let largest = vec![7; 1 << 20];
    for key in ["k".to_owned(), "k".repeat(1024)] {
        assert_code(&kvctl.feed(&["put", &key, "-"], &largest), 0);
        assert_eq!(kvctl.run(&["get", &key]).stdout, largest);
        assert_code(&kvctl.run(&["put", &key, ""]), 0);
        let output = kvctl.run(&["get", &key]);
        assert_code(&output, 0);
        assert!(output.stdout.is_empty());
    }
    for bytes in [0, 1025, 10_240] {
        let key = "k".repeat(bytes);
        for arguments in [&["get", &key][..], &["put", &key, "v"], &["del", &key], &["explain", "get", &key]]
        {
            let output = kvctl.run(arguments);
            assert_code(&output, 2);
            let message = String::from_utf8(output.stderr).unwrap();
            assert!(message.contains(&format!("{bytes} bytes")) && message.contains("1024"), "{message}");
        }
    }
    let output = kvctl.feed(&["put", "long", "-"], &[&largest[..], b"x"].concat());
    assert_code(&output, 2);
    assert!(String::from_utf8(output.stderr).unwrap().contains("1048576"));
    assert_code(&kvctl.run(&["get", "long"]), 1);
}

/// 0 ok, 1 not found, 2 usage, 3 unreachable, 4 failed.
fn exit_codes_are_as_documented(fabric: FabricKind) {
    let kvctl = Kvctl::start(fabric);
    assert_code(&kvctl.run(&["put", "k", "v"]), 0);
    assert_code(&kvctl.run(&["get", "k"]), 0);
    assert_code(&kvctl.run(&["del", "k"]), 0);
    for arguments in [["get", "k"], ["del", "k"]] {
        let output = kvctl.run(&arguments);
        assert_code(&output, 1);
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8(output.stderr).unwrap().contains("not found: k"));
    }
    for usage in [
        &["get"][..],
        &["put", "k"],
        &["frob", "k"],
        &["get", "k", "--key-format", "hex"],
        &["get", "k", "-e", "http://x"],
        &["man", "nosuch"],
    ] {
        assert_code(&kvctl.run(usage), 2);
    }
    // Nobody listens on port 1.
    let output = kvctl.run(&["get", "k", "-e", "127.0.0.1:1", "--timeout", "300ms"]);
    assert_code(&output, 3);
    assert!(String::from_utf8(output.stderr).unwrap().contains("did it happen: no"));
    // The server answers, but not as asked.
    let other = if fabric == FabricKind::Tcp { "verbs" } else { "tcp" };
    let address = kvctl.server.endpoint().trim_start_matches("sidestep://").to_owned();
    let mut command = Command::new(binary("kvctl"));
    let output = command.args(["get", "k", "-e", &address, "--fabric", other]).output().unwrap();
    assert_code(&output, 4);
    // The value is there, but has nowhere to go.
    assert_code(&kvctl.run(&["put", "k", "v"]), 0);
    let output = kvctl.run(&["get", "k", "--output-file", "/nonexistent/file"]);
    assert_code(&output, 4);
    // A stored value whose confirmation can't be written has been stored all the same.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = kvctl.command(&["put", "k", "new", "-o", "json"]).stdout(full).output().unwrap();
    assert_code(&output, 4);
    let message: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(message["error"]["did_it_happen"], "yes");
    assert_eq!(kvctl.run(&["get", "k"]).stdout, b"new");
}

/// With `-o json` results are JSON on standard output and messages JSON on standard error; so are usage errors.
fn results_and_messages_are_json_if_asked(fabric: FabricKind) {
    let kvctl = Kvctl::start(fabric);
    let (json, code) = kvctl.json(&["put", "k", "v\u{e9}"]);
    assert_eq!((code, &json["stored"], &json["value_bytes"]), (0, &Value::from(true), &Value::from(3)));
    let (json, code) = kvctl.json(&["get", "k"]);
    assert_eq!((code, &json["found"]), (0, &Value::from(true)));
    assert_eq!((&json["value"], &json["value_encoding"]), (&Value::from("v\u{e9}"), &Value::from("utf8")));
    let (json, code) = kvctl.json(&["del", "k"]);
    assert_eq!((code, &json["deleted"]), (0, &Value::from(true)));
    let (json, code) = kvctl.json(&["del", "k"]);
    assert_eq!((code, &json["deleted"]), (1, &Value::from(false)));
    let (json, code) = kvctl.json(&["get", "k"]);
    assert_eq!((code, &json["found"]), (1, &Value::from(false)));
    let (json, code) = kvctl.json(&["ping"]);
    assert_eq!((code, &json["fabric"]), (0, &Value::from(fabric.name())));
    assert!(json["control_us"].as_f64().unwrap() > 0.0 && json["read_us"].as_f64().unwrap() > 0.0, "{json}");
    let (json, code) = kvctl.json(&["stats"]);
    assert_eq!((code, &json["limits"]["key_bytes_max"]), (0, &Value::from(1024)));
    assert_eq!(json["server"]["session_count"], 1);
    assert!(json["derived"]["granted_percent"].as_f64().unwrap() > 0.0, "{json}");
    for (arguments, code) in [
        (&["get", "k", "-e", "127.0.0.1:1", "--timeout", "300ms"][..], 3),
        (&["get", ""], 2),
        (&["get"], 2),
        (&["frob"], 2),
    ] {
        let output = kvctl.run(&[arguments, &["-o", "json"]].concat());
        assert_code(&output, code);
        let message: Value = serde_json::from_slice(&output.stderr)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"));
        assert_eq!(message["error"]["exit_code"], code);
        assert!(output.stdout.is_empty());
    }
    let lines = kvctl.run(&["ping", "--count", "3", "--interval", "1ms", "-o", "json"]).stdout;
    let lines = String::from_utf8(lines).unwrap();
    let sequences: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["sequence"].clone()).collect();
    assert_eq!(sequences, [1, 2, 3]);
}

/// The trace has the round trips and verbs that the protocol promises, and each verb its place and times.
fn explain_shows_what_each_operation_costs(fabric: FabricKind) {
    let kvctl = Kvctl::start(fabric);
    for (arguments, exit, round_trips, awaited) in [
        (&["explain", "get", "k"][..], 1, 1, &["READ"][..]),
        (&["explain", "put", "k", "old"], 0, 2, &["READ", "WRITE", "CAS"]),
        (&["explain", "put", "k", "new"], 0, 3, &["READ", "WRITE", "READ", "CAS"]),
        (&["explain", "get", "k"], 0, 2, &["READ", "READ"]),
        (&["explain", "del", "k"], 0, 3, &["READ", "READ", "WRITE", "CAS"]),
        (&["explain", "del", "k"], 1, 1, &["READ"]),
    ] {
        let (json, code) = kvctl.json(arguments);
        assert_eq!(code, exit, "{json}");
        assert_eq!(json["summary"]["round_trips"], round_trips, "{arguments:?}: {json}");
        let verbs = json["verbs"].as_array().unwrap();
        let shown: Vec<&str> = verbs
            .iter()
            .filter(|verb| verb["silent"] == false)
            .map(|verb| verb["verb"].as_str().unwrap())
            .collect();
        assert_eq!(shown, awaited, "{arguments:?}: {json}");
        for verb in verbs {
            assert!(
                verb["remote_offset"].as_u64().unwrap() > 0 && verb["bytes"].as_u64().unwrap() > 0,
                "{verb}"
            );
            let (posted, completed) = (verb["posted_us"].as_f64().unwrap(), verb["completed_us"].as_f64());
            assert_eq!(completed.is_none(), verb["silent"] == true, "{verb}");
            assert!(completed.is_none_or(|completed| completed >= posted), "{verb}");
        }
        assert_eq!(json["summary"]["server_cpu_in_data_path"], fabric == FabricKind::Tcp);
    }
    let text = String::from_utf8(kvctl.run(&["explain", "put", "k", "v"]).stdout).unwrap();
    let promise = if fabric == FabricKind::Tcp { "tcp threads" } else { "server CPU: not involved" };
    assert!(text.contains("\n3 round trips, ") && text.contains(promise), "{text}");
    assert_eq!(kvctl.run(&["get", "k"]).stdout, b"v", "an explained operation is a real one");
}

/// As with `kvctl get k | head -c 1`: no panic, no message, no failure.
fn a_reader_that_goes_away_is_no_failure(fabric: FabricKind) {
    let kvctl = Kvctl::start(fabric);
    assert_code(&kvctl.feed(&["put", "k", "-"], &vec![1; 1 << 20]), 0);
    for arguments in
        [&["get", "k"][..], &["get", "k", "-o", "json"], &["--help"], &["completions", "bash"], &["man"]]
    {
        let mut child = kvctl.command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_code(&output, 0);
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

/// Whether it waits for its next ping or for a server that does not answer.
fn an_interrupt_ends_it_at_once(fabric: FabricKind) {
    let kvctl = Kvctl::start(fabric);
    let mut pinging = kvctl.command(&["ping", "--count", "0", "--interval", "1h"]).spawn().unwrap();
    // It has begun when the first line is there.
    let mut first = [0];
    pinging.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_interrupt_ends(pinging);

    kvctl.server.signal(Signal::STOP);
    let waiting = kvctl.command(&["ping", "--timeout", "1h"]).spawn().unwrap();
    // Without handlers of its own there is no moment too early; but let it have a thread that waits.
    until("it waits", || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", waiting.id())).unwrap();
        state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    });
    assert_interrupt_ends(waiting);
    kvctl.server.signal(Signal::CONT);
}

fn assert_interrupt_ends(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let began = Instant::now();
    until("an interrupted kvctl has ended", || child.try_wait().unwrap().is_some());
    // Against the hour that it would have waited; an emulated machine needs some of it.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
}

/// doctor exits with 0 exactly if it finds nothing wrong; it asks the server that was named, and whatever is not ok
/// has a remedy. A server that isn't there is wrong.
fn doctor_answers_for_this_host_and_the_server(fabric: FabricKind) {
    let kvctl = Kvctl::start(fabric);
    let (json, code) = kvctl.json(&["doctor"]);
    assert_eq!(code, if json["ok"] == true { 0 } else { 4 }, "{json}");
    let checks = json["checks"].as_array().unwrap();
    let check = |name: &'static str| checks.iter().filter(move |check| check["check"] == name);
    for name in ["memlock", "huge pages", "/dev/shm", "memfd", "loopback", "server"] {
        assert!(check(name).count() > 0, "no {name} in {json}");
    }
    assert!(check("server").all(|check| check["level"] == "ok"), "{json}");
    // shm and tcp work wherever these tests run.
    assert!(check("memfd").all(|check| check["level"] == "ok"), "{json}");
    let loopbacks = json["facts"]["loopbacks"].as_array().unwrap();
    for fabric in ["shm", "tcp"] {
        let loopback = loopbacks.iter().find(|loopback| loopback["fabric"] == fabric).unwrap();
        assert!(loopback["outcome"]["ok"]["read_ns"].as_u64().unwrap() > 0, "{json}");
    }
    for check in checks {
        assert_eq!(check["remedy"].is_null(), check["level"] == "ok", "{check}");
    }
    let (json, code) = kvctl.json(&["doctor", "-e", "127.0.0.1:1", "--timeout", "1s"]);
    assert_eq!((code, &json["ok"]), (4, &Value::from(false)));
    // A device that nobody has.
    let (_, code) = kvctl.json(&["doctor", "--device", "nosuch"]);
    assert_eq!(code, 4);
}

/// A served region is sound: 0. Its dump is too, and takes the room of what is used. Damaged, it is not: 1, with what was
/// found, where, and how much in all. What is no dump is another failure, and nothing is left of a dump that failed.
fn fsck_says_whether_a_region_or_its_dump_is_sound(fabric: FabricKind) {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let kvctl = Kvctl::start(fabric);
    for number in 0..20 {
        assert_code(&kvctl.run(&["put", &format!("key {number}"), "value"]), 0);
    }
    assert_code(&kvctl.run(&["del", "key 7"]), 0);
    let (json, code) = kvctl.json(&["fsck"]);
    assert_eq!((code, &json["clean"], &json["finding_count"]), (0, &Value::from(true), &Value::from(0)));
    assert_eq!((&json["index"]["live"], &json["index"]["deleted"]), (&Value::from(19), &Value::from(1)));
    assert_eq!(json["accounts_balanced"], true);
    let output = kvctl.run(&["fsck"]);
    assert_code(&output, 0);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with("\nclean\n") && text.contains("all of the pool"), "{text}");
    assert!(output.stderr.is_empty(), "no progress where nobody looks");

    let directory = tempfile::tempdir().unwrap();
    let (file, name) = (directory.path().join("dump"), directory.path().join("dump").display().to_string());
    let (json, code) = kvctl.json(&["dump", &name]);
    assert_eq!(
        (code, &json["region_bytes"], &json["changed_words"]),
        (0, &Value::from(64 << 20), &Value::from(0))
    );
    let metadata = std::fs::metadata(&file).unwrap();
    assert!(metadata.blocks() * 512 < 32 << 20, "{} blocks", metadata.blocks());
    assert_eq!(metadata.mode() & 0o777, 0o600);
    let check = |arguments: &[&str]| {
        kvctl.run(&[&["fsck", "--dump", &name, "-e", "127.0.0.1:1"], arguments].concat())
    };
    let output = check(&["-o", "json"]);
    assert_code(&output, 0);

    let opened = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    opened.write_all_at(&[0xff; 64], 4096).unwrap();
    let output = check(&["-o", "json", "--limit", "2"]);
    assert_code(&output, 1);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Eight words, and the run of entries that they were part of.
    assert_eq!((&json["clean"], &json["finding_count"]), (&Value::from(false), &Value::from(9)));
    assert_eq!(json["findings"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&json["findings"][0]["offset"], &json["findings"][0]["kind"]),
        (&Value::from(4096), &Value::from("directory-depth"))
    );
    let output = check(&[]);
    assert_code(&output, 1);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("0x1000 directory-depth: directory entry 0") && text.ends_with("\n9 findings\n"),
        "{text}"
    );

    opened.set_len(metadata.len() - 1).unwrap();
    let output = check(&[]);
    assert_code(&output, 4);
    assert!(String::from_utf8(output.stderr).unwrap().contains("not a dump"));
    assert_code(&kvctl.run(&["fsck", "--dump", "/nonexistent/file"]), 4);
    assert_code(&kvctl.run(&["fsck", "--limit", "many"]), 2);
    assert_code(&kvctl.run(&["fsck", "-e", "127.0.0.1:1", "--timeout", "300ms"]), 3);
    assert_code(
        &kvctl.run(&["dump", &format!("{name}.other"), "-e", "127.0.0.1:1", "--timeout", "300ms"]),
        3,
    );
    assert_code(&kvctl.run(&["dump", "/nonexistent/file"]), 4);
    let left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["dump"]);
}
