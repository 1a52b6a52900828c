//! What two cards can do together: the smaller of what each can do.
//!
//! Always true: both functions are symmetric, so both sides come to the same result from the same two numbers.

/// A path MTU, as cards count it. Packets of a message are cut to it, so both queue pairs must use the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1,024 bytes.
    B1024 = 3,
    /// 2,048 bytes.
    B2048 = 4,
    /// 4,096 bytes.
    B4096 = 5,
}

impl Mtu {
    const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// From libibverbs' number; none if it means nothing.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == code)
    }

    /// The largest that is not over `bytes`.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }

    /// libibverbs' number for it.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        128 << (self as u32)
    }
}

/// The MTU of both.
pub fn mtu(local: Mtu, remote: Mtu) -> Mtu {
    local.min(remote)
}

/// How many READs and atomics may be outstanding: the smaller of what one side starts and the other answers.
/// 0 stands for a side that did not say, never for "none": a queue pair with depth 0 can do neither. The result
/// is at least 1 and fits the 8 bits that a connection request has for it.
pub fn depth(local: u32, remote: u32) -> u8 {
    let said = match (local, remote) {
        (0, 0) => 1,
        (0, said) | (said, 0) => said,
        (local, remote) => local.min(remote),
    };
    said.min(u32::from(u8::MAX)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_mtu_wins_both_ways() {
        assert_eq!(mtu(Mtu::B1024, Mtu::B4096), Mtu::B1024);
        assert_eq!(mtu(Mtu::B4096, Mtu::B1024), Mtu::B1024);
        assert_eq!(Mtu::from_bytes(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::from_bytes(255), None);
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::from_code(mtu.code()), Some(mtu));
            assert_eq!(Mtu::from_bytes(mtu.bytes()), Some(mtu));
        }
        assert_eq!((Mtu::from_code(0), Mtu::from_code(6)), (None, None));
    }

    #[test]
    fn the_smaller_depth_wins_and_zero_is_not_a_depth() {
        assert_eq!(depth(16, 8), 8);
        assert_eq!(depth(8, 16), 8);
        assert_eq!(depth(16, 0), 16);
        assert_eq!(depth(0, 16), 16);
        assert_eq!(depth(0, 0), 1);
        assert_eq!(depth(1000, 300), 255);
    }
}
