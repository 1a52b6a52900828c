//! The commands of `kvbench`.
//!
//! Always true: mistakes in what was asked are found before the store is touched; the report goes to standard
//! output, everything else to standard error; the exit code says what happened: 0 all went well, 2 usage, 3 the
//! store cannot be reached, 4 the command failed or operations did.

pub mod arguments;
mod churn;
mod grow;
mod load;
mod replay;
mod run;
mod session;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::Parser;

use crate::connect::{StoreOptions, connect};
use crate::endurance::EnduranceError;
use crate::report::Report;
use crate::store::{Connect, StoreError};
use arguments::{Arguments, Command};

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// What was asked makes no sense.
    #[error("{0}")]
    Usage(String),
    /// There is no store.
    #[error("{0}")]
    Unreachable(String),
    /// It went wrong on the way.
    #[error("{0}")]
    Failed(String),
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unreachable { .. } => Self::Unreachable(error.to_string()),
            StoreError::Refused { .. } | StoreError::Failed { .. } => Self::Failed(error.to_string()),
        }
    }
}

impl CommandError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
            Self::Failed(_) => 4,
        }
    }

    fn usage(error: impl ToString) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match execute(&arguments, &connect, &mut std::io::stdout()) {
        Ok(done) if done.errors() > 0 => ExitCode::from(4),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvbench: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// What a command that went through came to.
#[derive(Debug)]
enum Done {
    /// Operations with a report on them.
    Reported(Box<Report>),
    /// A run that was to last.
    Lasted {
        /// Operations that failed, and values that were wrong.
        errors: u64,
    },
}

impl Done {
    fn errors(&self) -> u64 {
        match self {
            Self::Reported(report) => report.operations.errors,
            Self::Lasted { errors } => *errors,
        }
    }
}

impl From<Report> for Done {
    fn from(report: Report) -> Self {
        Self::Reported(Box::new(report))
    }
}

impl From<EnduranceError> for CommandError {
    fn from(error: EnduranceError) -> Self {
        match error {
            EnduranceError::Store(error) => error.into(),
            EnduranceError::Fill { .. } => Self::Failed(error.to_string()),
        }
    }
}

/// How a store is found.
type Open<'a> = &'a dyn Fn(&StoreOptions) -> Result<Box<dyn Connect>, StoreError>;

fn execute(
    arguments: &Arguments,
    open: Open<'_>,
    output: &mut dyn std::io::Write,
) -> Result<Done, CommandError> {
    match &arguments.command {
        Command::Load(arguments) => load::execute(arguments, open, output).map(Done::from),
        Command::Run(arguments) => run::execute(arguments, open, output).map(Done::from),
        Command::Replay(arguments) => replay::execute(arguments, open, output).map(Done::from),
        Command::Churn(arguments) => churn::execute(arguments, open, output),
        Command::Grow(arguments) => grow::execute(arguments, open, output),
    }
}
