//! Where a measurement was taken.
//!
//! Always true: what cannot be found out is called "unknown"; a report is never refused for it.

use std::fs;

/// This host.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu_model: String,
    /// Cores that this process may use.
    pub core_count: usize,
    /// Release of the kernel.
    pub kernel: String,
}

impl Machine {
    /// Looks around.
    pub fn detect() -> Self {
        Self {
            cpu_model: fs::read_to_string("/proc/cpuinfo")
                .ok()
                .and_then(|text| cpu_model(&text))
                .unwrap_or_else(unknown),
            core_count: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| unknown(), |text| text.trim().to_owned()),
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The first processor's name; x86 and ARM call it differently.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let value = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    value("model name").or_else(|| value("Model")).or_else(|| value("CPU part"))
}

#[test]
fn finds_the_processor() {
    assert_eq!(cpu_model("processor\t: 0\nmodel name\t: A B @ 2: x\n"), Some("A B @ 2: x".to_owned()));
    assert_eq!(cpu_model("CPU part\t: 0xd0c\n"), Some("0xd0c".to_owned()));
    assert_eq!(cpu_model(""), None);
}
