//! Judges what a run of `sidestep_tests::histories` left behind, once more: `history-judge FOLDER [KEY]`. With a key's
//! number, shows all calls of it first, in the order in which they were made.

use std::path::Path;
use std::process::ExitCode;

use sidestep_tests::histories::Evidence;
use sidestep_tests::histories::verdict::judge;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, key) = match &arguments[..] {
        [folder] => (folder, None),
        [folder, key] if key.parse::<u16>().is_ok() => (folder, key.parse().ok()),
        _ => {
            eprintln!("usage: history-judge FOLDER [KEY]");
            return ExitCode::from(2);
        }
    };
    match look(Path::new(folder), key) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn look(folder: &Path, key: Option<u16>) -> Result<(), Box<dyn std::error::Error>> {
    let Evidence { mut histories, keys, lives } = Evidence::load(folder)?;
    histories.operations.sort_by_key(|operation| operation.invoked);
    let of_key = histories.operations.iter().filter(|operation| Some(operation.key) == key);
    of_key.for_each(|operation| println!("{operation}"));
    println!("{:?}", judge(&histories, &keys, lives)?);
    Ok(())
}
