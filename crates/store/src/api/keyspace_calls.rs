//! Calls on the keyspaces of a store: those that there are, and changes of them, which maintenance makes while the caller waits.

use crate::api::blocking::KeyspaceHandle;
use crate::api::store::Store;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace::block_device::{BlockDevice, group_bytes_max};
use tapetum_base::keyspace::catalogue::Keyspace;
use tapetum_base::keyspace::changing::{KeyspaceChange, KeyspaceWish};
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_kernels::scan::Format;

impl Store {
    /// The keyspace of a name.
    ///
    /// # Errors
    /// [`KeyspaceError::Unknown`](crate::KeyspaceError::Unknown) if there is none.
    pub fn keyspace(&self, name: &str) -> Result<KeyspaceHandle, Error> {
        self.refuse_forked()?;
        Ok(KeyspaceHandle::new(self.clone(), self.base().keyspaces.find(name)?))
    }

    /// The keyspaces that there are, dropped ones whose room is being freed included, by id.
    pub fn keyspaces(&self) -> Vec<Keyspace> {
        self.refuse_forked().map_or_else(|_| Vec::new(), |()| self.base().keyspaces.list())
    }

    /// The keyspaces that were not dropped, and how requests name them.
    pub fn open_keyspaces(&self) -> Vec<(Keyspace, KeyspaceRef)> {
        self.refuse_forked().map_or_else(|_| Vec::new(), |()| self.base().keyspaces.list_open())
    }

    /// Makes a keyspace.
    ///
    /// # Errors
    /// [`Error::Keyspace`], if the name cannot be used; [`Error::ReadOnly`].
    pub fn create_keyspace(&self, name: &str) -> Result<KeyspaceHandle, Error> {
        self.create_keyspace_of(name, KeyspaceKind::Hashed)
    }

    /// Makes a keyspace of a kind: hashed, or ordered, whose keys are scanned in their order and have 1,024 bytes at most.
    ///
    /// # Errors
    /// As [`Store::create_keyspace`].
    pub fn create_keyspace_of(&self, name: &str, kind: KeyspaceKind) -> Result<KeyspaceHandle, Error> {
        let options = Vec::new();
        self.change_keyspaces(KeyspaceWish::Create { name: name.into(), kind, options })?;
        self.keyspace(name)
    }

    /// The keyspace of a name, which is made where there is none: hashed.
    ///
    /// # Errors
    /// As [`Store::create_keyspace`], but for a name that is taken.
    pub fn keyspace_or_create(&self, name: &str) -> Result<KeyspaceHandle, Error> {
        self.keyspace_or_create_of(name, KeyspaceKind::Hashed)
    }

    /// The keyspace of a name and a kind, which is made where there is none.
    ///
    /// # Errors
    /// As [`Store::keyspace_or_create`]; [`KeyspaceError::IsOfKind`](crate::KeyspaceError::IsOfKind).
    pub fn keyspace_or_create_of(&self, name: &str, kind: KeyspaceKind) -> Result<KeyspaceHandle, Error> {
        let made = match self.keyspace(name) {
            Err(Error::Keyspace(KeyspaceError::Unknown { .. })) => self.create_keyspace_of(name, kind),
            found => found,
        };
        let handle = match made {
            // Another thread has made it meanwhile.
            Err(Error::Keyspace(KeyspaceError::NameTaken { .. })) => self.keyspace(name)?,
            made => made?,
        };
        match handle.keyspace().kind() {
            has if has == kind => Ok(handle),
            has => Err(Error::Keyspace(KeyspaceError::IsOfKind { name: name.into(), kind: has })),
        }
    }

    /// Makes a hashed keyspace that is a block device: see [`BlockDevice`].
    ///
    /// # Errors
    /// As [`Store::create_keyspace`].
    pub fn create_block_device(&self, name: &str, device: BlockDevice) -> Result<KeyspaceHandle, Error> {
        let (kind, options) = (KeyspaceKind::Hashed, device.options());
        self.change_keyspaces(KeyspaceWish::Create { name: name.into(), kind, options })?;
        self.keyspace(name)
    }

    /// Makes a block device larger.
    ///
    /// # Errors
    /// As [`Store::create_keyspace`]; [`KeyspaceError::NoDevice`](crate::KeyspaceError::NoDevice),
    /// [`KeyspaceError::DeviceShrinks`](crate::KeyspaceError::DeviceShrinks).
    pub fn resize_block_device(&self, name: &str, device: BlockDevice) -> Result<(), Error> {
        self.change_keyspaces(KeyspaceWish::ResizeDevice { name: name.into(), device })
    }

    /// Gives a keyspace another name; handles and sessions go on with it.
    ///
    /// # Errors
    /// As [`Store::create_keyspace`].
    pub fn rename_keyspace(&self, from: &str, to: &str) -> Result<(), Error> {
        self.change_keyspaces(KeyspaceWish::Rename { from: from.into(), to: to.into() })
    }

    /// Drops a keyspace with all that is in it, at once and for good. Its room comes back while the store serves; its name is free.
    ///
    /// # Errors
    /// As [`Store::create_keyspace`]; the default keyspace is not dropped.
    pub fn drop_keyspace(&self, name: &str) -> Result<(), Error> {
        self.change_keyspaces(KeyspaceWish::Drop { name: name.into() })
    }

    /// Records with a keyspace the format of its keys and values, or that it is unknown; see [`KeyspaceHandle::format`]. The contents are not
    /// checked.
    ///
    /// # Errors
    /// As [`Store::create_keyspace`]; [`KeyspaceError::FormatsTooLong`](crate::KeyspaceError::FormatsTooLong).
    pub fn set_keyspace_format(&self, name: &str, format: Option<&Format>) -> Result<(), Error> {
        self.change_keyspaces(KeyspaceWish::SetFormat { name: name.into(), format: format.cloned() })
    }

    fn change_keyspaces(&self, wish: KeyspaceWish) -> Result<(), Error> {
        let change = self.begin_keyspace_change(wish)?;
        self.wait_for(|| change.result(), |timeout| change.wait(timeout))
    }

    /// An error if groups of a block device do not fit into segments: a flush of few of them must.
    fn refuse_groups(&self, options: &[u8]) -> Result<(), Error> {
        let (Ok(device), segment_bytes) = (BlockDevice::parse(options), self.base().geometry.segment_bytes) else {
            // Options that only another version knows are not judged here.
            return Ok(());
        };
        let blocks = device.group_blocks();
        let fits = blocks == 1 || 4 * group_bytes_max(blocks as usize) as u64 <= segment_bytes;
        if fits { Ok(()) } else { Err(Error::Keyspace(KeyspaceError::GroupsTooLarge { blocks, segment_bytes })) }
    }

    /// As [`Store::create_keyspace`] and its like, but returns at once: maintenance makes the change.
    pub fn begin_keyspace_change(&self, wish: KeyspaceWish) -> Result<KeyspaceChange, Error> {
        let base = self.base();
        base.refuse_to_write()?;
        base.log.poisoned()?;
        if let KeyspaceWish::Create { name, kind, .. } = &wish
            && self.engine(*kind).is_none()
        {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(Error::Keyspace(KeyspaceError::NoEngine { name, kind: *kind }));
        }
        if let KeyspaceWish::Create { options, .. } = &wish {
            self.refuse_groups(options)?;
        }
        let change = base.keyspace_changes.ask(wish)?;
        base.wakeup.wake();
        Ok(change)
    }
}
