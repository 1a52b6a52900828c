//! `kvserver`: see `kvserver --help`.

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use sidestep_server::config::{Arguments, resolve};

/// Exit code for usage and configuration, as clap's own.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let matches = Arguments::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let (check, print) = (arguments.check_config, arguments.print_config);
    let resolved = match resolve(arguments, &matches) {
        Ok(resolved) => resolved,
        Err(error) => {
            // Logs are not set up yet: how they should look is part of what is wrong.
            let _ = writeln!(std::io::stderr(), "kvserver: {error}");
            return ExitCode::from(USAGE);
        }
    };
    if print {
        let _ = write!(std::io::stdout(), "{}", resolved.print());
    }
    if check && !print {
        let _ = writeln!(std::io::stdout(), "the configuration is good");
    }
    if check || print {
        return ExitCode::SUCCESS;
    }
    sidestep_server::run(resolved.config)
}
