//! Mistakes made on purpose, so that the tests which must catch them are tested themselves.
//!
//! Always true: without the feature `planted`, [`is_planted`] is a constant `false` and every mistake is compiled away;
//! with it, nothing is planted until a test asks, and then on its own thread only.
//!
//! To add one: a line in [`Fault`], and `is_planted(Fault::It)` where the rule is kept. The simulator then refuses to
//! pass until it catches it.

macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $name:ident: $rule:literal,)*) => {
        /// A mistake that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Fault {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// The rule that it breaks.
            pub const fn rule(self) -> &'static str {
                match self {
                    $(Self::$name => $rule,)*
                }
            }
        }
    };
}

faults! {
    /// A slot is examined by its tag alone.
    KeyNotCompared: "only a fitting block with this key is this key's",
}

#[cfg(feature = "planted")]
std::thread_local! {
    static PLANTED: std::cell::Cell<u128> = const { std::cell::Cell::new(0) };
}

const _: () = assert!(Fault::ALL.len() <= 128, "one bit each");

/// Whether this thread is to make that mistake.
#[cfg(feature = "planted")]
#[inline]
pub fn is_planted(fault: Fault) -> bool {
    PLANTED.get() & 1 << fault as u8 != 0
}

/// Whether this thread is to make that mistake: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_planted(_: Fault) -> bool {
    false
}

/// Makes this thread make these mistakes and no others, until it is told otherwise.
#[cfg(feature = "planted")]
pub fn plant(faults: &[Fault]) {
    PLANTED.set(faults.iter().fold(0, |bits, fault| bits | 1 << *fault as u8));
}
