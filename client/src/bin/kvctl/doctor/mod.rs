//! doctor: what makes people fail, and what to do about it.
//!
//! Always true: facts are gathered first, judged next ([`rules`], pure), printed last. It changes nothing on the host;
//! what it makes to try things is gone when it ends.

mod cards;
mod facts;
mod host;
mod loopback;
mod rules;
#[cfg(test)]
mod tests;

use serde_json::json;
use sidestep_client::{Effect, Error};

use self::facts::{Facts, Outcome, Server, ServerAnswer};
use self::rules::{Check, Level};
use crate::arguments::{Common, OutputFormat};
use crate::connection::{Purpose, connect, device};
use crate::failure::{Exit, Failure};
use crate::output;

/// `kvctl doctor`.
pub(crate) fn doctor(common: &Common) -> Result<Exit, Failure> {
    let wanted = device(common);
    let cards = cards::look(&wanted);
    let facts = Facts {
        loopbacks: loopback::run(&cards, &wanted, common.timeout),
        cards,
        wanted,
        memlock: host::memlock(),
        huge_pages: host::huge_pages(),
        memory: host::memory(),
        shared_memory: host::shared_memory(),
        server: server(common)?,
    };
    let checks = rules::judge(&facts);
    let is_well = checks.iter().all(|check| check.level < Level::Wrong);
    match common.output {
        OutputFormat::Json => {
            output::write_json(&json!({ "ok": is_well, "checks": checks, "facts": facts }), Effect::No)?;
        }
        OutputFormat::Text => output::write(text(&checks).as_bytes(), Effect::No)?,
    }
    Ok(if is_well { Exit::Ok } else { Exit::Failed })
}

/// Asks the server, if one was named.
fn server(common: &Common) -> Result<Option<Server>, Failure> {
    let Some(endpoint) = &common.endpoint else { return Ok(None) };
    let ask = || -> Result<ServerAnswer, Failure> {
        let client = connect(common, Purpose::Read)?;
        let ping = client.ping()?;
        let (fabric, connection) = client.fabric()?;
        let version = client.with_session(|session| Ok(session.welcome()?.server_version.clone()))?;
        Ok(ServerAnswer { version, fabric, connection, ping_us: ping.as_micros() as u64 })
    };
    let outcome = match ask() {
        Ok(answer) => Outcome::Ok(answer),
        // No endpoint at all is a slip of the pen, not something wrong with a server.
        Err(failure @ Failure::Client(Error::Endpoint(_))) => return Err(failure),
        Err(failure) => Outcome::Error(failure.to_string()),
    };
    Ok(Some(Server { endpoint: endpoint.clone(), outcome }))
}

/// One line a check, with what belongs to it below.
fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.check.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let level = match check.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Wrong => "WRONG",
        };
        let mut findings = check.finding.lines();
        let first = findings.next().unwrap_or_default();
        text.push_str(&format!("{level:<7}  {:<width$}  {first}\n", check.check));
        let margin = " ".repeat(7 + 2 + width + 2);
        for line in findings {
            text.push_str(&format!("{margin}{line}\n"));
        }
        if let Some(remedy) = &check.remedy {
            text.push_str(&format!("{margin}-> {remedy}\n"));
        }
    }
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    let (warnings, wrongs) = (count(Level::Warning), count(Level::Wrong));
    let plural = if warnings == 1 { "" } else { "s" };
    text.push_str(&format!("\n{} ok, {warnings} warning{plural}, {wrongs} wrong\n", count(Level::Ok)));
    text
}
