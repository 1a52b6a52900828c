//! The command line.
//!
//! Always true: every option can be given before or after the command; a flag wins over its environment variable, and
//! that over the default.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use sidestep_client::FabricKind;

use crate::bytes::ByteFormat;
use crate::{duration, failure};

/// Where the server is if nothing says otherwise.
pub(crate) const DEFAULT_ENDPOINT: &str = "sidestep://127.0.0.1:7480";

const ENDPOINT_HELP: &str = "\
The server: sidestep://HOST[:PORT][?fabric=verbs|shm|tcp], HOST[:PORT] or unix:PATH \
[default: sidestep://127.0.0.1:7480]";

/// Reads and changes keys of a Sidestep memory node, and shows how it does so
#[derive(Parser, Debug)]
#[command(name = "kvctl", version, after_long_help = failure::exit_help(), max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// Where the server is.
    #[arg(short, long, global = true, help = ENDPOINT_HELP, env = "SIDESTEP_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<String>,

    /// The form of results on standard output and of messages on standard error
    #[arg(short, long, global = true, value_enum, default_value_t = OutputFormat::Text, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,

    /// The secret that the server asks for; on the command line others can see it, so prefer the variable
    #[arg(long, global = true, env = "SIDESTEP_TOKEN", hide_env_values = true, value_name = "SECRET")]
    pub(crate) token: Option<String>,

    /// The time for connecting, and again for each operation: 5s, 200ms, 1m
    #[arg(long, global = true, default_value = "5s", value_parser = duration::parse, value_name = "TIME")]
    pub(crate) timeout: Duration,

    /// The fabric to use; auto takes the best that both sides have
    #[arg(long, global = true, value_enum, default_value_t = FabricChoice::Auto, value_name = "FABRIC")]
    pub(crate) fabric: FabricChoice,

    /// The RDMA device to use instead of the one found by address
    #[arg(long, global = true, env = "SIDESTEP_DEVICE", value_name = "NAME")]
    pub(crate) device: Option<String>,

    /// The device's port, from 1
    #[arg(long, global = true, env = "SIDESTEP_IB_PORT", value_parser = clap::value_parser!(u8).range(1..), value_name = "PORT")]
    pub(crate) ib_port: Option<u8>,

    /// The entry of the port's GID table
    #[arg(long, global = true, env = "SIDESTEP_GID_INDEX", value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Write the value of a key to standard output, with nothing added
    Get(GetArguments),
    /// Store a value at a key, whatever was there
    Put(PutArguments),
    /// Remove a key; exit with 1 if it was not there
    Del(KeyArguments),
    /// Measure how fast the server answers, with its CPU (control) and without (one READ)
    Ping(PingArguments),
    /// Show the server's figures
    Stats,
    /// Run an operation and show each of its verbs
    #[command(subcommand)]
    Explain(Explained),
    /// Check this host for what makes RDMA and shared memory fail, with remedies
    #[command(long_about = DOCTOR)]
    Doctor,
    /// Check whether a region, or a dump of one, is sound; exit with 1 if it is not
    #[command(long_about = FSCK)]
    Fsck(FsckArguments),
    /// Write a copy of a region to a file that fsck can check
    #[command(long_about = DUMP)]
    Dump(DumpArguments),
    /// Write a completion script to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual page to standard output
    Man {
        /// Of this command instead of kvctl as a whole
        command: Option<String>,
    },
}

const DOCTOR: &str = "\
Check this host for what makes RDMA and shared memory fail, with remedies.

Looks at devices, ports, GID tables, MTU, atomics, the limit on locked memory, huge pages and shared memory, and runs \
a READ and a CAS over each fabric to this host itself. If an endpoint is given, the server is checked too. Each line \
is ok, a warning (slower, or a fabric that cannot be used) or wrong. Exits with 4 if anything is wrong.";

const FSCK: &str = "\
Check whether a region is sound; exit with 1 if it is not.

Looks at everything that can be seen without a key: superblock, directory, buckets, slots, blocks and their checksums, \
free maps, what was granted, and whether the block pool adds up to the byte. Nothing is changed, and the server's CPU is \
asked for the list of grants only. Clients may go on meanwhile: what seems wrong is looked at again until it is certain, \
and what changed each time is counted as changed, not as wrong. Each finding has its place in the region and its kind; \
kinds keep their names.";

const DUMP: &str = "\
Write a copy of a region to a file that fsck can check.

The file has the length of the region and takes the room of what is used in it (zeros are holes), and holds every key and \
value: it is readable by its owner only. It appears when it is whole; an older file of that name is replaced. Clients may \
go on meanwhile. Then the copy is of many moments, but the index is read again at the end and what changed is written down, \
so that fsck --dump does not take the one for damage nor overlook the other: what it can't tell it counts as changed.";

/// An operation to explain.
#[derive(Subcommand, Debug)]
pub(crate) enum Explained {
    /// Explain a get
    Get(KeyArguments),
    /// Explain a put
    Put(PutArguments),
    /// Explain a delete
    Del(KeyArguments),
}

/// A key.
#[derive(Args, Debug)]
pub(crate) struct KeyArguments {
    /// The key, 1 to 1024 bytes of anything (put -- before one that begins with -)
    #[arg(value_name = "KEY")]
    pub(crate) key: OsString,

    /// How KEY spells its bytes
    #[arg(long, value_enum, default_value_t = ByteFormat::Raw, value_name = "FORMAT")]
    pub(crate) key_format: ByteFormat,
}

/// What get wants.
#[derive(Args, Debug)]
pub(crate) struct GetArguments {
    #[command(flatten)]
    pub(crate) key: KeyArguments,

    /// Write the value to FILE; an absent key leaves the file alone
    #[arg(long, value_name = "FILE")]
    pub(crate) output_file: Option<PathBuf>,
}

/// What put wants.
#[derive(Args, Debug)]
pub(crate) struct PutArguments {
    #[command(flatten)]
    pub(crate) key: KeyArguments,

    /// The value, up to 1 MiB; - reads it from standard input
    #[arg(value_name = "VALUE", required_unless_present = "file", conflicts_with = "file")]
    pub(crate) value: Option<OsString>,

    /// Read the value from FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// How VALUE spells its bytes (files and standard input are taken as they are)
    #[arg(long, value_enum, default_value_t = ByteFormat::Raw, value_name = "FORMAT")]
    pub(crate) value_format: ByteFormat,
}

/// What ping wants.
#[derive(Args, Debug)]
pub(crate) struct PingArguments {
    /// How often; 0 goes on until interrupted
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    pub(crate) count: u64,

    /// The time between two pings
    #[arg(short, long, default_value = "1s", value_parser = duration::parse, value_name = "TIME")]
    pub(crate) interval: Duration,
}

/// What fsck wants.
#[derive(Args, Debug)]
pub(crate) struct FsckArguments {
    /// Check the dump in FILE instead of a server's region
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Option<PathBuf>,

    /// Show at most N findings; all are counted
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(crate) limit: usize,
}

/// What dump wants.
#[derive(Args, Debug)]
pub(crate) struct DumpArguments {
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// The form of what is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

/// A fabric, or the choice of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FabricChoice {
    /// The best that both sides have
    Auto,
    /// RDMA
    Verbs,
    /// Shared memory of this host
    Shm,
    /// Verbs in frames over TCP
    Tcp,
}

impl FabricChoice {
    /// The fabric; none leaves the choice open.
    pub(crate) const fn kind(self) -> Option<FabricKind> {
        match self {
            Self::Auto => None,
            Self::Verbs => Some(FabricKind::Verbs),
            Self::Shm => Some(FabricKind::Shm),
            Self::Tcp => Some(FabricKind::Tcp),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(std::iter::once("kvctl").chain(line.iter().copied()))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_may_follow_the_command() {
        let arguments = parse(&["get", "k", "-e", "unix:/s", "-o", "json", "--timeout", "200ms"]).unwrap();
        assert_eq!(arguments.common.endpoint.as_deref(), Some("unix:/s"));
        assert_eq!(arguments.common.output, OutputFormat::Json);
        assert_eq!(arguments.common.timeout, Duration::from_millis(200));
        let arguments = parse(&["--fabric", "shm", "explain", "put", "k", "v"]).unwrap();
        assert_eq!(arguments.common.fabric.kind(), Some(FabricKind::Shm));
        assert!(matches!(arguments.command, Command::Explain(Explained::Put(_))));
    }

    #[test]
    fn a_put_has_one_source_of_its_value() {
        assert!(parse(&["put", "k"]).is_err(), "an empty value must be asked for, not forgotten");
        assert!(parse(&["put", "k", "v", "--file", "f"]).is_err());
        parse(&["put", "k", ""]).unwrap();
        parse(&["put", "k", "-"]).unwrap();
        parse(&["put", "k", "--file", "f"]).unwrap();
        parse(&["put", "--", "-k", "-v"]).unwrap();
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for line in [
            &[][..],
            &["frob"],
            &["get"],
            &["get", "k", "x"],
            &["get", "k", "--timeout", "0"],
            &["get", "k", "--ib-port", "0"],
            &["get", "k", "-o", "yaml"],
            &["explain", "ping"],
            &["completions", "nosuch"],
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line:?}");
        }
    }

    #[test]
    fn help_states_the_exit_codes() {
        let help = Arguments::command().render_long_help().to_string();
        assert!(help.contains("3  unreachable"), "{help}");
    }
}
