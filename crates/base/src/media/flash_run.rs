//! A run of bytes on flash, and where they go. Plain data.

/// One read command's worth of neighbouring bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashRun {
    pub flash: u64,
    /// Offset in the buffer.
    pub at: u32,
    pub length: u32,
}
