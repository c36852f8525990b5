//! The drive's programs over data nodes and extensions, and their inputs in a session's scratch buffer.

use tapetum_base::error::Error;
use tapetum_drive::programs::extension::EXTENSION;
use tapetum_drive::programs::node::{
    NODE_GET, NODE_MERGE, NODE_PUT, NODE_REALIGN, NODE_SCAN, NODE_SPLIT, NODE_SPLIT_REST,
};
use tapetum_drive::{Identity, ProgramId};

/// The ids of the programs at the drive.
#[derive(Clone, Copy, Debug)]
pub struct NodePrograms {
    pub get: ProgramId,
    pub put: ProgramId,
    pub scan: ProgramId,
    pub realign: ProgramId,
    pub split: ProgramId,
    pub split_rest: ProgramId,
    pub merge: ProgramId,
    /// Gives the value of an extension.
    pub extension: ProgramId,
}

impl NodePrograms {
    /// # Errors
    /// When the drive lacks one of them.
    pub fn find(identity: &Identity) -> Result<NodePrograms, Error> {
        let find = |(name, version)| {
            identity.program(name, version).ok_or_else(|| {
                Error::Unusable(format!(
                    "the drive lacks the program {name}, version {version}, which ordered keyspaces need: use a drive of this version"
                ))
            })
        };
        Ok(NodePrograms {
            get: find(NODE_GET)?,
            put: find(NODE_PUT)?,
            scan: find(NODE_SCAN)?,
            realign: find(NODE_REALIGN)?,
            split: find(NODE_SPLIT)?,
            split_rest: find(NODE_SPLIT_REST)?,
            merge: find(NODE_MERGE)?,
            extension: find(EXTENSION)?,
        })
    }
}
