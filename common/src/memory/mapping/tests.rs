//! Tests of [`Mapping`].

use std::io::Write;

use super::*;
use crate::layout::Offset;

fn options(bytes: u64) -> MappingOptions {
    MappingOptions { bytes, huge_pages: HugePages::Off, threads: 2, name: "sidestep-test".into() }
}

fn clone(fd: BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().unwrap()
}

fn memory_file(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = make_file("sidestep-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// 5 MiB, and a length that is no multiple of anything: base and length are whole pages, every page is there before
/// it is touched, and the last word works.
#[test]
fn every_page_is_taken_and_the_last_word_works() {
    for bytes in [1, 4096, 5 << 20, (5 << 20) + 1] {
        let mapping = Mapping::create(&options(bytes)).unwrap();
        let page_bytes = mapping.page_bytes();
        assert_eq!(mapping.bytes(), bytes.next_multiple_of(page_bytes));
        assert!(mapping.base().as_ptr().addr().is_multiple_of(page_bytes as usize));
        let status = rustix::fs::fstat(mapping.fd()).unwrap();
        assert_eq!(status.st_blocks as u64 * 512, mapping.bytes(), "pages not taken");
        let last = Offset(mapping.bytes() - 8);
        assert_eq!(mapping.words().fetch_add(last, 7), Ok(0), "zeroed");
        assert_eq!(mapping.words().load(last), Ok(7));
    }
}

/// The huge page pool is empty or too small, and the size is no multiple of 2 MiB: `auto` falls back with whole, aligned
/// pages and says why; where enough are free it takes them.
#[test]
fn auto_always_gives_a_working_region_and_says_which_pages() {
    let mapping =
        Mapping::create(&MappingOptions { huge_pages: HugePages::Auto, ..options(5 << 20) }).unwrap();
    let last = Offset(mapping.bytes() - 8);
    mapping.words().store(last, 9).unwrap();
    assert_eq!(mapping.words().load(last), Ok(9));
    let described = mapping.describe();
    if mapping.page_bytes() == PAGE_2M {
        assert!(described.contains("6291456 bytes in huge pages of 2 MiB"), "{described}");
    } else {
        assert!(described.contains("huge pages of 2097152 bytes asked for"), "{described}");
    }
}

/// More huge pages than any host has: an error that names both numbers and the remedy.
#[test]
fn missing_huge_pages_are_named() {
    for (huge_pages, page_bytes) in [(HugePages::Size2m, PAGE_2M), (HugePages::Size1g, PAGE_1G)] {
        let asked = MappingOptions { huge_pages, ..options(1 << 45) };
        match Mapping::create(&asked) {
            Err(error @ MappingError::HugePages { .. }) => {
                assert!(error.to_string().contains(&((1_u64 << 45) / page_bytes).to_string()), "{error}");
                assert!(error.to_string().contains("nr_hugepages"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// 32 TiB on a host that has less: refused before a page is touched, with both numbers.
#[test]
fn a_shortage_is_an_error_with_both_numbers() {
    match Mapping::create(&options(1 << 45)) {
        Err(MappingError::Shortage { asked_bytes, available_bytes, .. }) => {
            assert_eq!(asked_bytes, 1 << 45);
            assert!(available_bytes < asked_bytes);
        }
        other => panic!("{other:?}"),
    }
    let little = Available { bytes: 10, limit: MemoryLimit::Host };
    let error = check_available(11, Some(little.clone())).unwrap_err().to_string();
    assert!(error.contains("11") && error.contains("10 available"), "{error}");
    assert!(check_available(10, Some(little)).is_ok());
    for bytes in [0, BYTES_MAX + 1, u64::MAX] {
        assert!(matches!(Mapping::create(&options(bytes)), Err(MappingError::Size { .. })), "{bytes}");
    }
}

/// Writers and readers on both sides of 2 GiB and 4 GiB: no offset is cut to 32 bits on the way. Needs 4 GiB of free
/// memory, since a region's pages are really taken; hosts with less say so.
#[test]
fn words_beyond_four_gibibytes_are_their_own() {
    let asked = options((4 << 30) + (1 << 20));
    if Available::now().is_some_and(|available| available.bytes < asked.bytes + (1 << 30)) {
        // Past the test harness's capture, so that the skip is seen and counted.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED words_beyond_four_gibibytes_are_their_own: needs 5 GiB of available memory"
        );
        return;
    }
    let mapping = Mapping::create(&asked).unwrap();
    let client = Mapping::attach(clone(mapping.fd()), asked.bytes, Rights::ReadWrite).unwrap();
    let places = [0, (1 << 31) - 8, 1 << 31, (1_u64 << 32) - 8, 1 << 32, (1 << 32) + 4096, asked.bytes - 8];
    for place in places {
        client.words().store(Offset(place), place + 1).unwrap();
    }
    for place in places {
        assert_eq!(mapping.words().load(Offset(place)), Ok(place + 1), "{place:#x}");
    }
    assert!(client.words().store(Offset(asked.bytes), 0).is_err());
}

/// A client that is about to exit, or means harm, can't change the file's length under the others.
#[test]
fn nobody_can_cut_the_file() {
    let mapping = Mapping::create(&options(1 << 20)).unwrap();
    for length in [0, 4096, 2 << 20] {
        assert_eq!(rustix::fs::ftruncate(mapping.fd(), length), Err(Errno::PERM));
    }
    assert_eq!(rustix::fs::fcntl_add_seals(mapping.fd(), SealFlags::WRITE), Err(Errno::PERM));
    let client = Mapping::attach(clone(mapping.fd()), 1 << 20, Rights::ReadWrite).unwrap();
    drop(client);
    assert_eq!(mapping.words().load(Offset((1 << 20) - 8)), Ok(0));
}

/// The read-only descriptor: reading sees what others write; mapping it for writing, or opening what it names by another
/// user, is refused by the kernel.
#[test]
fn a_read_only_descriptor_cannot_be_mapped_for_writing() {
    let mapping = Mapping::create(&options(1 << 20)).unwrap();
    let reader = Mapping::attach(clone(mapping.read_only_fd()), 1 << 20, Rights::ReadOnly).unwrap();
    mapping.words().store(Offset(64), 5).unwrap();
    assert_eq!(reader.words().load(Offset(64)), Ok(5));
    match Mapping::attach(clone(mapping.read_only_fd()), 1 << 20, Rights::ReadWrite) {
        Err(MappingError::System { source, .. }) => {
            assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
        }
        other => panic!("{other:?}"),
    }
    let mode = rustix::fs::fstat(mapping.read_only_fd()).unwrap().st_mode & 0o777;
    assert_eq!(mode & 0o077, 0, "others may not open it: {mode:o}");
    assert_ne!(rustix::io::fcntl_getfd(mapping.read_only_fd()).unwrap(), rustix::io::FdFlags::empty());
}

/// What a client may be handed while a server starts, or by something that is no server: an empty file, one that only
/// has its header yet, one that isn't sealed yet, a file on disk. Each is refused, and none ends in a signal.
#[test]
fn what_is_no_finished_region_is_refused() {
    let expected = 1 << 20;
    for bytes in [0, 104, 4096, expected - 4096, expected + 4096] {
        match Mapping::attach(memory_file(bytes, SEALS), expected, Rights::ReadWrite) {
            Err(MappingError::Length { found_bytes, expected_bytes }) => {
                assert_eq!((found_bytes, expected_bytes), (bytes, expected));
            }
            other => panic!("{other:?}"),
        }
    }
    for (seals, names) in [
        (SealFlags::empty(), "seal, shrink, grow"),
        (SealFlags::GROW, "seal, shrink"),
        (SealFlags::SHRINK | SealFlags::GROW, "seal"),
    ] {
        match Mapping::attach(memory_file(expected, seals), expected, Rights::ReadWrite) {
            Err(MappingError::Unsealed { missing }) => assert_eq!(missing, names),
            other => panic!("{other:?}"),
        }
    }
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(matches!(Mapping::attach(file.into(), expected, Rights::ReadOnly), Err(MappingError::NotMemory)));
    for bytes in [0, 104] {
        let file = memory_file(bytes, SEALS);
        assert!(matches!(Mapping::attach(file, bytes, Rights::ReadOnly), Err(MappingError::Length { .. })));
    }
}
