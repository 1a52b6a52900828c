//! Regions that outlive their server: `kvserver --keep`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sidestep_client::{Client, FabricKind};
use sidestep_tests::system::{Process, binary};

const LONG: Duration = Duration::from_secs(60);
const KEYS: u32 = 4000;

/// A directory in memory that goes with the test.
struct Shelf(PathBuf);

impl Shelf {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/sidestep-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a new directory");
        Self(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("the path is text")
    }

    fn serve(&self) -> Process {
        Process::kvserver(FabricKind::Tcp, 0, &["-m", "32M", "--keep", self.text(), "--grace-ms", "200"])
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn value(number: u32, round: u32) -> Vec<u8> {
    format!("value {number} of round {round} ").into_bytes().repeat(1 + number as usize % 20)
}

/// What kvserver says when it does not start over `fabric`.
fn refused(directory: &Path, fabric: FabricKind, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(binary("kvserver"))
        .args(["--listen", "127.0.0.1:0", "--admin-listen", "off", "--transport", fabric.name(), "--keep"])
        .arg(directory)
        .args(arguments)
        .output()
        .expect("kvserver runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn check(client: &Client, round: u32) {
    let mut session = client.session().expect("it joins");
    for number in 0..KEYS {
        let found = session.get(&key(number)).expect("a get");
        let expected = (number % 7 != 3).then(|| value(number, round));
        assert_eq!(found, expected, "key {number} in round {round}");
    }
}

/// The server is killed in the middle of its clients' work, three times. What was acknowledged is there, what was deleted
/// is not, and each server can use all memory again: with what leaked the third round would not fit.
#[test]
fn a_killed_server_leaves_its_data_to_the_next() {
    let shelf = Shelf::new("killed");
    let mut incarnations = Vec::new();
    for round in 0..3 {
        let server = shelf.serve();
        let client = server.client(LONG);
        if round > 0 {
            check(&client, round - 1);
        }
        let mut session = client.session().expect("it joins");
        incarnations.push(session.superblock().expect("it is joined").incarnation);
        for number in 0..KEYS {
            session.put(&key(number), &value(number, round)).expect("a put");
        }
        for number in (0..KEYS).filter(|number| number % 7 == 3) {
            assert!(session.delete(&key(number)).expect("a delete"));
        }
        server.kill();
    }
    incarnations.dedup();
    assert_eq!(incarnations.len(), 3, "each life has an incarnation of its own");
    check(&shelf.serve().client(LONG), 2);
}

/// A client that was there before finds the next server by itself, with everything that it had been told was done.
#[test]
fn clients_go_on_with_the_next_server() {
    let shelf = Shelf::new("go-on");
    let server = shelf.serve();
    let (port, client) = (server.port(), server.client(LONG));
    let mut session = client.session().expect("it joins");
    session.put(b"before", b"1").expect("a put");
    server.kill();
    let arguments = ["-m", "32M", "--keep", shelf.text()];
    let _server = Process::kvserver(FabricKind::Tcp, port, &arguments);
    assert_eq!(session.get(b"before").expect("a get"), Some(b"1".to_vec()));
    session.put(b"after", b"2").expect("a put");
    assert!(session.delete(b"before").expect("a delete"));
}

#[test]
fn what_does_not_fit_is_never_taken_over() {
    let shelf = Shelf::new("refused");
    let server = shelf.serve();
    server.client(LONG).session().and_then(|mut session| session.put(b"k", b"v")).expect("a put");
    let (code, said) = refused(&shelf.0, FabricKind::Tcp, &["-m", "32M"]);
    assert!(code != Some(0) && said.contains("in use"), "{code:?}: {said}");
    server.kill();

    let (code, said) = refused(&shelf.0, FabricKind::Tcp, &["-m", "64M"]);
    assert!(code != Some(0) && said.contains("33554432") && said.contains("67108864"), "{code:?}: {said}");
    let (code, said) = refused(&shelf.0, FabricKind::Shm, &["-m", "32M"]);
    assert!(code != Some(0) && said.contains("shm"), "{code:?}: {said}");
    let (code, said) = refused(Path::new("/"), FabricKind::Tcp, &["-m", "32M"]);
    assert!(code != Some(0) && said.contains("tmpfs"), "{code:?}: {said}");

    // A word of the directory is damaged: that is said, and the file is as it was.
    let file = shelf.0.join("region");
    let good = std::fs::read(&file).expect("the region");
    let mut bad = good.clone();
    bad[4096..4104].fill(0xff);
    std::fs::write(&file, &bad).expect("it can be written");
    let (code, said) = refused(&shelf.0, FabricKind::Tcp, &["-m", "32M"]);
    assert!(
        code != Some(0) && said.contains("damaged") && said.contains("nothing of it"),
        "{code:?}: {said}"
    );
    assert!(std::fs::read(&file).expect("the region") == bad, "it was changed");
    std::fs::write(&file, &good).expect("it can be written");

    let client = shelf.serve().client(LONG);
    drop(client);
}
