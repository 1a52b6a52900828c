//! Draws a history.
//!
//! Always true: two bars share a column if and only if their operations overlap.
//!
//! ```text
//! operation 0   ├───┤        put 1 = stored           0..10
//! operation 1         ├──┤   get = absent            20..30
//! operation 2      ├╌╌╌╌╌╌   delete, open            15..
//! ```

use std::fmt;

use super::{Answer, Call, Event, Outcome};

/// Histories of more operations are listed without bars.
const DRAWN_MAX: usize = 32;

/// Displays operations, an indented line each, with their numbers in the history.
pub struct Timeline<'a>(pub &'a [Event]);

impl fmt::Display for Timeline<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().enumerate().map(|(index, event)| (index, *event, "")).collect();
        draw(out, &lines)
    }
}

/// Draws operations in the order of their invocations: number, operation, remark.
pub(super) fn draw(out: &mut fmt::Formatter<'_>, lines: &[(usize, Event, &str)]) -> fmt::Result {
    let mut lines = lines.to_vec();
    lines.sort_by_key(|(index, event, _)| (event.invoked, *index));
    let columns = if lines.len() <= DRAWN_MAX { columns(&lines) } else { Vec::new() };
    let texts: Vec<_> = lines.iter().map(|(_, event, _)| event.to_string()).collect();
    let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    for ((index, event, remark), text) in lines.iter().zip(&texts) {
        write!(out, "\n  {index:>6}  ")?;
        for &time in &columns {
            write!(out, "{}", mark(event, time))?;
        }
        write!(out, "  {text}")?;
        if !remark.is_empty() {
            write!(out, "{:pad$}  {remark}", "", pad = width - text.chars().count())?;
        }
    }
    Ok(())
}

/// A column for each time at which something is invoked or returns. Where both happen at one time the invocation
/// overlaps what returns, so one column does.
fn columns(lines: &[(usize, Event, &str)]) -> Vec<u64> {
    let mut times = Vec::new();
    for (_, event, _) in lines {
        times.push(event.invoked);
        if let Outcome::Returned { at, .. } = event.outcome {
            times.push(at);
        }
    }
    times.sort_unstable();
    times.dedup();
    times
}

fn mark(event: &Event, time: u64) -> &'static str {
    match event.outcome {
        _ if time < event.invoked => "  ",
        Outcome::Open if time == event.invoked => "├╌",
        Outcome::Open => "╌╌",
        Outcome::Returned { at, .. } if time > at => "  ",
        Outcome::Returned { at, .. } if event.invoked == at => "│ ",
        Outcome::Returned { at, .. } if time == at => "┤ ",
        Outcome::Returned { .. } if time == event.invoked => "├─",
        Outcome::Returned { .. } => "──",
    }
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            Call::Get => write!(out, "get")?,
            Call::Put(value) => write!(out, "put {value}")?,
            Call::Delete => write!(out, "delete")?,
        }
        let Outcome::Returned { at, answer } = self.outcome else {
            return write!(out, ", open, from {}", self.invoked);
        };
        match answer {
            Answer::Value(Some(value)) => write!(out, " = {value}")?,
            Answer::Value(None) => write!(out, " = absent")?,
            Answer::Stored => write!(out, " = stored")?,
            Answer::Existed(true) => write!(out, " = it existed")?,
            Answer::Existed(false) => write!(out, " = it was absent")?,
        }
        write!(out, ", {} to {at}", self.invoked)
    }
}
