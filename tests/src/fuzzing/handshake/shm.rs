//! Joining over `shm`: the memory file that a client is handed, and the ticket that a memory node is shown.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use arbitrary::Arbitrary;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sidestep_common::fabric::shm::{AttachError, ShmTarget, fuzzing};
use sidestep_common::fabric::{ConnectOptions, DeviceChoice, Join, Rights, SessionId, Target, Ticket};
use sidestep_common::layout::Offset;
use sidestep_common::memory::{HugePages, Mapping, MappingOptions};

use super::{PATIENCE, REGION_BYTES, check_error, rights};

#[derive(Arbitrary, Debug)]
pub(super) struct FileSpec {
    kind: FileKind,
    /// Twice, and a peer that takes only one must not leak the other.
    twice: bool,
}

#[derive(Arbitrary, Debug)]
enum FileKind {
    Memory { bytes: FileBytes, seals: u8, read_only: bool },
    Null,
    Socket,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum FileBytes {
    Right,
    Less(u8),
    More(u8),
    Any(u32),
}

/// A ticket as it is shown.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct TicketSpec {
    changed: Option<(u8, u8)>,
    shown_bytes: u8,
    read_only: bool,
    fenced: bool,
}

fn options(rights: Rights) -> ConnectOptions {
    ConnectOptions {
        peer: None,
        region_bytes: REGION_BYTES,
        rights,
        verbs_in_flight_max: 16,
        buffer_limit_bytes: 1 << 20,
        device: DeviceChoice::default(),
        deadline: Instant::now() + PATIENCE,
    }
}

/// Makes the file that is handed over.
fn file(spec: &FileKind) -> OwnedFd {
    match spec {
        FileKind::Null => std::fs::File::open("/dev/null").expect("/dev/null").into(),
        FileKind::Socket => UnixStream::pair().expect("a pair of sockets").0.into(),
        FileKind::Memory { bytes, seals, read_only } => {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("fuzz", flags).expect("a memory file");
            let bytes = match *bytes {
                FileBytes::Right => REGION_BYTES,
                FileBytes::Less(less) => REGION_BYTES - u64::from(less),
                FileBytes::More(more) => REGION_BYTES + u64::from(more),
                FileBytes::Any(bytes) => u64::from(bytes) % (1 << 20),
            };
            rustix::fs::ftruncate(&file, bytes).expect("a length");
            let wanted = SealFlags::from_bits_truncate(u32::from(*seals));
            // In whatever order: one that is refused is left out.
            let _ = rustix::fs::fcntl_add_seals(&file, wanted);
            if *read_only {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                return std::fs::File::open(path).expect("the memory file again").into();
            }
            file
        }
    }
}

/// A client joins, and is answered and handed whatever the fuzzer likes.
pub(super) fn join(answer: &[u8], spec: Option<&FileSpec>, rights: Rights) {
    let (node, client) = UnixStream::pair().expect("a pair of sockets");
    let files: Vec<OwnedFd> = match spec {
        None => Vec::new(),
        Some(FileSpec { kind, twice: false }) => vec![file(kind)],
        Some(FileSpec { kind, twice: true }) => vec![file(kind), file(kind)],
    };
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let handed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    if !handed.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&handed)), "the space is for two files");
    }
    if !answer.is_empty() {
        let pieces = [std::io::IoSlice::new(answer)];
        rustix::net::sendmsg(&node, &pieces, &mut control, SendFlags::NOSIGNAL).expect("room for an answer");
    }
    node.shutdown(Shutdown::Write).expect("a socket");
    match fuzzing::attach(&client, Ticket([3; 16]), &options(rights)) {
        Err(error) => check_error(&error),
        Ok(mapping) => {
            // Every byte can be touched: no file that could be cut short is mapped.
            assert_eq!(mapping.bytes(), REGION_BYTES);
            let words = mapping.words();
            let mut bytes = vec![0; REGION_BYTES as usize];
            words.read(Offset(0), &mut bytes).expect("the whole region");
            if rights.can_write() {
                words.write(Offset(0), &bytes).expect("the whole region");
            }
        }
    }
}

static MAPPING: LazyLock<Arc<Mapping>> = LazyLock::new(|| {
    let options =
        MappingOptions { bytes: REGION_BYTES, huge_pages: HugePages::Off, threads: 1, name: "fuzz".into() };
    Arc::new(Mapping::create(&options).expect("a little memory"))
});

/// A memory node is shown a ticket, or part of one: it hands its region out for the one that it gave, whole and not void.
pub(super) fn show_ticket(&TicketSpec { changed, shown_bytes, read_only, fenced }: &TicketSpec) {
    let target = ShmTarget::new(Arc::clone(&MAPPING), "/nowhere");
    let session = SessionId(1);
    let Ok(Join::Shm { ticket, .. }) = target.admit(session, rights(read_only)) else {
        panic!("a first ticket")
    };
    if fenced {
        assert!(target.fence(session), "nobody has joined");
    }
    let mut shown = ticket.0;
    if let Some((byte, bit)) = changed {
        shown[usize::from(byte) % shown.len()] ^= 1 << (bit % 8);
    }
    let shown = &shown[..shown.len().min(shown_bytes.into())];
    let (node, mut client) = UnixStream::pair().expect("a pair of sockets");
    client.write_all(shown).expect("room for a ticket");
    client.shutdown(Shutdown::Write).expect("a socket");
    let attached = target.attach(node);
    if let Err(AttachError::Io { source, .. }) = &attached
        && matches!(source.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
    {
        // This machine was busy with something else for the whole second that a ticket may take.
        return;
    }
    let right = shown == ticket.0 && !fenced;
    assert_eq!(attached.is_ok(), right, "{attached:?}");
    assert_eq!(target.connection_count(), 0, "the client has closed its end");
    drop(target);
    let mut answer = Vec::new();
    let heard = client.read_to_end(&mut answer);
    assert!(heard.is_err() || answer.is_empty() || answer[8] == u8::from(!right), "{answer:?}");
}
