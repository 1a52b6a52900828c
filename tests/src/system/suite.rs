//! The same cases on every fabric, each counted by itself.

use libtest_mimic::{Arguments, Trial};
use sidestep_client::FabricKind;

use super::{Node, NodeOptions};

/// A story that holds on every fabric.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// The story.
    pub story: Story,
}

/// A story; it panics if its promise is broken.
#[derive(Clone, Copy, Debug)]
pub enum Story {
    /// With a node in this process whose region has so many mebibytes.
    WithNode(u64, fn(&Node)),
    /// With whatever it starts itself.
    Alone(fn(FabricKind)),
}

/// The fabrics that this run is about: `SIDESTEP_TEST_FABRICS`, a list with commas; shm and tcp if not set. The
/// Soft-RoCE machine sets it to verbs.
///
/// # Panics
/// If the list has an unknown name.
pub fn fabrics() -> Vec<FabricKind> {
    let list = std::env::var("SIDESTEP_TEST_FABRICS").unwrap_or_else(|_| "shm,tcp".into());
    let parse = |name: &str| match name {
        "shm" => FabricKind::Shm,
        "tcp" => FabricKind::Tcp,
        "verbs" => FabricKind::Verbs,
        other => panic!("SIDESTEP_TEST_FABRICS names `{other}`"),
    };
    list.split(',').filter(|name| !name.is_empty()).map(parse).collect()
}

/// Runs every case on every fabric, as libtest would, and exits.
pub fn run_suite(cases: &[Case]) -> ! {
    let arguments = Arguments::from_args();
    let trials = fabrics().into_iter().flat_map(|fabric| {
        cases.iter().map(move |case| {
            let case = *case;
            Trial::test(format!("{fabric}::{}", case.name), move || {
                match case.story {
                    Story::WithNode(memory_mib, run) => {
                        let options = NodeOptions { memory_mib, ..NodeOptions::default() };
                        run(&Node::start(fabric, &options));
                    }
                    Story::Alone(run) => run(fabric),
                }
                Ok(())
            })
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}

/// A list of cases out of functions: `name: MEBIBYTES` for one that wants a node, `name` for one that doesn't.
#[macro_export]
macro_rules! cases {
    ($($name:ident $(: $memory_mib:expr)?),* $(,)?) => {
        [$($crate::system::Case { name: stringify!($name), story: $crate::story!($name $($memory_mib)?) }),*]
    };
}

/// One story, for [`cases`].
#[doc(hidden)]
#[macro_export]
macro_rules! story {
    ($name:ident $memory_mib:expr) => {
        $crate::system::Story::WithNode($memory_mib, $name)
    };
    ($name:ident) => {
        $crate::system::Story::Alone($name)
    };
}
