//! A client that works until it is killed: `busy-client ENDPOINT NUMBER`.

use std::process::ExitCode;

use sidestep_client::{Client, Error};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, endpoint, number] = &arguments[..] else {
        eprintln!("usage: busy-client ENDPOINT NUMBER");
        return ExitCode::from(2);
    };
    match work(endpoint, number) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("busy-client {number}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Ends by itself only if the region is full or the server is gone.
fn work(endpoint: &str, number: &str) -> Result<(), Error> {
    let client = Client::connect(endpoint)?;
    let mut round = 0_u64;
    loop {
        let key = format!("busy{number}/{}", round % 100);
        if round < 20_000 {
            client.put(key.as_bytes(), &round.to_le_bytes())?;
        }
        client.get(key.as_bytes())?;
        round += 1;
    }
}
