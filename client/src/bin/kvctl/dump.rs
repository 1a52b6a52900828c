//! dump.
//!
//! Always true: the file appears when it is whole, readable by its owner only; what is cut short leaves a part under
//! another name, which the next attempt replaces.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use sidestep_client::Effect;
use sidestep_client::fsck::{Live, dump as dumping};

use crate::arguments::{Common, DumpArguments, OutputFormat};
use crate::connection::{Purpose, connect, endpoint};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::progress::ProgressLine;
use crate::stats::bytes;

/// `kvctl dump`.
pub(crate) fn dump(common: &Common, arguments: &DumpArguments) -> Result<Exit, Failure> {
    let client = connect(common, Purpose::Inspect)?;
    let failed = |error| Failure::of_source(endpoint(common), error);
    let mut live = Live::new(client.session()?).map_err(failed)?;
    let partial = partial(&arguments.file);
    let file = create(&partial)?;
    let mut line = ProgressLine::new(common.output);
    let written = dumping::write(&mut live, &file, Some(&mut |progress| line.tell(progress)));
    line.end();
    let written = written.map_err(|error| {
        // Whether it can be removed or not, the failure is the other one.
        let _ = std::fs::remove_file(&partial);
        failed(error)
    })?;
    std::fs::rename(&partial, &arguments.file).map_err(|source| Failure::Io {
        doing: format!("renaming {} to {}", partial.display(), arguments.file.display()),
        source,
        effect: Effect::No,
    })?;
    let name = arguments.file.display().to_string();
    match common.output {
        OutputFormat::Json => output::write_json(
            &json!({
                "endpoint": endpoint(common),
                "file": name,
                "region_bytes": written.region_bytes,
                "data_bytes": written.data_bytes,
                "grants": written.grants,
                "changed_words": written.changed_words,
            }),
            Effect::Yes,
        )?,
        OutputFormat::Text => {
            let changed = match written.changed_words {
                0 => "nothing of the index changed meanwhile".to_owned(),
                words => format!("{words} words of the index changed meanwhile"),
            };
            let (data, region) = (bytes(written.data_bytes), bytes(written.region_bytes));
            let line = format!("{name}: {data} of a region of {region}; {changed}\n");
            output::write(line.as_bytes(), Effect::Yes)?;
        }
    }
    Ok(Exit::Ok)
}

/// Where the file grows.
fn partial(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".partial");
    name.into()
}

fn create(path: &Path) -> Result<File, Failure> {
    let failed =
        |source| Failure::Io { doing: format!("creating {}", path.display()), source, effect: Effect::No };
    // An older part may have another mode; this one is made anew.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(failed)
}
