//! The manual page and completion scripts, made of the command line's own description.

use std::io;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, roman};
use sidestep_client::Effect;

use crate::arguments::Arguments;
use crate::failure::{EXIT_CODES, EXIT_NOTE, Exit, Failure};
use crate::output;

/// `kvctl completions`.
pub(crate) fn completions(shell: Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "kvctl", &mut script);
    output::write(&script, Effect::No)?;
    Ok(Exit::Ok)
}

/// `kvctl man`: of kvctl, or of one of its commands.
pub(crate) fn manual(command: Option<&str>) -> Result<Exit, Failure> {
    let page = page(command)?;
    output::write(&page, Effect::No)?;
    Ok(Exit::Ok)
}

fn page(command: Option<&str>) -> Result<Vec<u8>, Failure> {
    let mut whole = Arguments::command().disable_help_subcommand(true);
    whole.build();
    let described = match command {
        None => whole,
        Some(name) => match whole.find_subcommand(name) {
            Some(part) => part.clone(),
            None => return Err(Failure::Usage(format!("kvctl has no command `{name}`"))),
        },
    };
    render(described).map_err(|source| Failure::Io {
        doing: "making the manual page".into(),
        source,
        effect: Effect::No,
    })
}

/// A page with the usual sections, and one for exit codes.
fn render(described: Command) -> io::Result<Vec<u8>> {
    let (has_commands, has_version) = (described.has_subcommands(), described.get_version().is_some());
    let man = clap_mangen::Man::new(described);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    let mut exits = Roff::new();
    exits.control("SH", ["EXIT STATUS"]);
    for (exit, meaning) in EXIT_CODES {
        exits.control("TP", []).text([bold((exit as u8).to_string())]).text([roman(meaning)]);
    }
    exits.control("PP", []).text([roman(EXIT_NOTE)]);
    exits.to_writer(&mut page)?;
    // Only the program as a whole has one.
    if has_version {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_commands_and_exit_codes() {
        let page = String::from_utf8(page(None).unwrap()).unwrap();
        for part in ["kvctl", "doctor", "unreachable", "SIDESTEP_ENDPOINT"] {
            assert!(page.contains(part), "{part} is not in the page");
        }
    }

    #[test]
    fn each_command_has_a_page() {
        for command in Arguments::command().get_subcommands() {
            let page = String::from_utf8(page(Some(command.get_name())).unwrap()).unwrap();
            assert!(page.contains(&format!("kvctl\\-{}", command.get_name())), "{page}");
        }
        assert!(page(Some("nosuch")).is_err());
    }
}
