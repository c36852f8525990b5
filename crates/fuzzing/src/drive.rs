//! What crosses a queue pair.

use tapetum::fuzzing::Input;
use tapetum_drive::{Command, Completion};

/// Decoding is strict: what decodes encodes to the same bytes.
pub fn command(bytes: &[u8]) {
    let whole: [u8; Command::ENCODED_BYTES] = Input::new(bytes).array();
    if let Ok(command) = Command::decode(&whole) {
        assert_eq!(command.encode(), whole);
    }
    let whole: [u8; Completion::ENCODED_BYTES] = Input::new(bytes).array();
    if let Ok(completion) = Completion::decode(&whole) {
        assert_eq!(completion.encode(), whole);
    }
}
