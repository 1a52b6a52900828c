//! What the server says.

use arbitrary::Arbitrary;
use sidestep_common::fabric::{Commits, FabricKind, Join, SessionId, Ticket};
use sidestep_common::layout::{AtomicityDomain, Geometry, SizeClass, Superblock, chunk_shape};
use sidestep_common::wire::{
    AuditedChunk, ChunkGrant, DirectoryChanges, DirectoryRun, Pulse, Refusal, RefusalCode, Response,
    ServerStatistics, Welcome, decode, encode, read_frame,
};

use super::super::versions::VersionsSpec;

/// Of the region that the server has, if it says nothing else.
pub(super) const REGION_BYTES: u64 = 64 << 20;
/// Bits for as many blocks as are ever taken here.
const AUDITED_BYTES: usize = 32;

/// What the server says, in this order, whatever it is asked.
#[derive(Arbitrary, Debug)]
pub(super) enum Answer {
    Welcome {
        superblock: SuperblockSpec,
        session: u32,
        lease_ms: u64,
        value_bytes_max: u32,
    },
    Refused {
        code: u8,
        message: String,
    },
    Heartbeat(PulseSpec),
    Chunks(Vec<GrantSpec>),
    ChunksReturned,
    Rejoined {
        verbs: bool,
        host: Option<String>,
        port: u16,
    },
    Statistics {
        version: String,
        fabrics: Vec<String>,
        numbers: [u64; 2],
    },
    Goodbye,
    /// Said unasked.
    Notice(PulseSpec),
    BucketReported,
    Audited(Vec<AuditSpec>),
    /// Bytes with the right length in front of them.
    Framed(Vec<u8>),
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
pub(super) enum SuperblockSpec {
    /// A whole one, of a region of some size.
    Whole {
        region_bytes: u64,
        nic: bool,
        grace_ms: u64,
    },
    Patched {
        bit: u16,
    },
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
pub(super) struct PulseSpec {
    epoch: u8,
    quiesced: u64,
    draining: bool,
    wants_memory: bool,
    audit_begun: u8,
    audit_done: u8,
    /// Entries of the directory, those far apart too; none stands for all.
    changes: Option<Vec<(u16, u32)>>,
}

#[derive(Arbitrary, Debug)]
pub(super) enum AuditSpec {
    /// Of the chunk of that number: whether all of its blocks, but for those said, are reached.
    Chunk {
        number: u8,
        all: bool,
        but: Vec<u16>,
    },
    Any {
        offset: u64,
        reached: Vec<u8>,
    },
}

#[derive(Arbitrary, Debug)]
pub(super) enum GrantSpec {
    /// What a server would grant: the chunk of that number, of the class that was asked for last.
    Good {
        number: u8,
        versions: VersionsSpec,
    },
    /// The same, of another class, or with too many versions.
    Odd {
        number: u8,
        class: u8,
        versions: VersionsSpec,
    },
    Any {
        offset: u64,
        class: u8,
        versions: VersionsSpec,
    },
}

/// The superblock of a region of that size.
pub(super) fn superblock(region_bytes: u64) -> Superblock {
    let geometry = Geometry::for_region(region_bytes).expect("a region's size");
    Superblock { geometry, incarnation: 1, hash_seed: 2, domain: AtomicityDomain::Cpu, grace_ms: 1000 }
}

impl SuperblockSpec {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Whole { region_bytes, nic, grace_ms } => {
                let good = superblock(REGION_BYTES);
                let geometry = Geometry::for_region(*region_bytes).unwrap_or(good.geometry);
                let domain = if *nic { AtomicityDomain::Nic } else { AtomicityDomain::Cpu };
                Superblock { geometry, domain, grace_ms: *grace_ms, ..good }.encode().to_vec()
            }
            Self::Patched { bit } => {
                let mut bytes = superblock(REGION_BYTES).encode();
                bytes[usize::from(bit / 8) % bytes.len()] ^= 1 << (bit % 8);
                bytes.to_vec()
            }
            Self::Raw(bytes) => bytes.clone(),
        }
    }
}

/// Where the chunk of that number starts.
fn chunk_offset(number: u8) -> u64 {
    superblock(REGION_BYTES).geometry.block_pool_offset.0 + (u64::from(number % 32) << 20)
}

impl GrantSpec {
    fn grant(&self, asked: SizeClass) -> ChunkGrant {
        match self {
            Self::Good { number, versions } => ChunkGrant {
                offset: chunk_offset(*number),
                class: asked.index(),
                versions: versions.versions(chunk_shape(asked).block_count),
            },
            Self::Odd { number, class, versions } => {
                let pool = superblock(REGION_BYTES).geometry.block_pool_offset.0;
                let offset = pool + (u64::from(*number) << 14);
                ChunkGrant { offset, class: *class, versions: versions.versions(u32::MAX) }
            }
            Self::Any { offset, class, versions } => {
                ChunkGrant { offset: *offset, class: *class, versions: versions.versions(u32::MAX) }
            }
        }
    }
}

impl PulseSpec {
    fn pulse(&self) -> Pulse {
        let changes = match &self.changes {
            None => DirectoryChanges::All,
            Some(runs) => {
                let run = |(first, count): &(u16, u32)| {
                    // Now and then beyond any directory.
                    let first =
                        if *first < 0xff00 { u32::from(*first) } else { u32::MAX - u32::from(*first) };
                    DirectoryRun { first, count: *count }
                };
                DirectoryChanges::Runs(runs.iter().map(run).collect())
            }
        };
        Pulse {
            epoch: self.epoch.into(),
            quiesced: self.quiesced,
            draining: self.draining,
            wants_memory: self.wants_memory,
            audit_begun: self.audit_begun.into(),
            audit_done: self.audit_done.into(),
            changes,
        }
    }
}

impl AuditSpec {
    fn chunk(&self) -> AuditedChunk {
        match self {
            Self::Chunk { number, all, but } => {
                let bytes = but.iter().map(|block| usize::from(block / 8) + 1).max().unwrap_or(0);
                let mut reached = vec![if *all { 0xff } else { 0 }; bytes.max(AUDITED_BYTES)];
                for block in but {
                    reached[usize::from(block / 8)] ^= 1 << (block % 8);
                }
                AuditedChunk { offset: chunk_offset(*number), reached }
            }
            Self::Any { offset, reached } => AuditedChunk { offset: *offset, reached: reached.clone() },
        }
    }
}

impl Answer {
    /// Its bytes on the wire.
    pub(super) fn bytes(&self, asked: SizeClass) -> Vec<u8> {
        let response = match self {
            Self::Welcome { superblock, session, lease_ms, value_bytes_max } => {
                welcome(superblock.bytes(), *session, *lease_ms, *value_bytes_max)
            }
            Self::Refused { code, message } => {
                Response::Refused(Refusal { code: refusal_code(*code), message: message.clone() })
            }
            Self::Heartbeat(pulse) => Response::Heartbeat(pulse.pulse()),
            Self::Notice(pulse) => Response::Notice(pulse.pulse()),
            Self::BucketReported => Response::BucketReported,
            Self::Audited(chunks) => Response::Audited(chunks.iter().map(AuditSpec::chunk).collect()),
            Self::Chunks(grants) => Response::Chunks(grants.iter().map(|grant| grant.grant(asked)).collect()),
            Self::ChunksReturned => Response::ChunksReturned,
            Self::Rejoined { verbs, host, port } => Response::Rejoined(join(*verbs, host.clone(), *port)),
            Self::Statistics { version, fabrics, numbers } => {
                Response::Statistics(Box::new(ServerStatistics {
                    version: version.clone(),
                    fabrics: fabrics.iter().map(|text| (FabricKind::Tcp, text.clone())).collect(),
                    uptime_ms: numbers[0],
                    resident_bytes: numbers[1],
                    ..ServerStatistics::default()
                }))
            }
            Self::Goodbye => Response::Goodbye,
            Self::Framed(bytes) => {
                check_message(bytes);
                return frame(bytes);
            }
            Self::Raw(bytes) => return bytes.clone(),
        };
        encoded(&response)
    }
}

fn refusal_code(code: u8) -> RefusalCode {
    let codes = [
        RefusalCode::Credentials,
        RefusalCode::Fabric,
        RefusalCode::SessionLimit,
        RefusalCode::OutOfMemory,
        RefusalCode::Quota,
        RefusalCode::Invalid,
        RefusalCode::Draining,
        RefusalCode::Fenced,
        RefusalCode::IndexFull,
        RefusalCode::MemoryReturning,
    ];
    codes[usize::from(code) % codes.len()]
}

/// A welcome.
pub(super) fn welcome(superblock: Vec<u8>, session: u32, lease_ms: u64, value_bytes_max: u32) -> Response {
    Response::Welcome(Box::new(Welcome {
        server_version: "1".into(),
        session: SessionId(session),
        lease_ms,
        epoch: 1,
        superblock,
        key_bytes_max: 1024,
        value_bytes_max,
        admin: None,
        join: join(false, None, 7),
    }))
}

fn join(verbs: bool, host: Option<String>, port: u16) -> Join {
    let (ticket, rkey) = (Ticket([1; 16]), 2);
    if !verbs {
        return Join::Tcp { host, port, ticket, rkey };
    }
    let commits = Commits::TwoSided { version: 1, depth: 16 };
    Join::Verbs { host, port, ticket, rkey, base: 3, responder_depth: 4, mtu_bytes: 1024, commits }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// What is encoded within a frame's limit is decoded to the same.
pub(super) fn encoded(response: &Response) -> Vec<u8> {
    let Ok(bytes) = encode(response) else { return Vec::new() };
    assert_eq!(decode::<Response>(&bytes).expect("what we encode, we decode"), *response);
    frame(&bytes)
}

/// What decodes encodes to something that decodes to the same.
pub(super) fn check_message(bytes: &[u8]) {
    if let Ok(response) = decode::<Response>(bytes) {
        let again = encode(&response).expect("a message that came in a frame fits a frame");
        assert!(again.len() <= bytes.len(), "our encoding is the shortest");
        assert_eq!(decode::<Response>(&again).expect("what we encode, we decode"), response);
    }
    let _ = read_frame::<Response>(&mut &*bytes);
}
