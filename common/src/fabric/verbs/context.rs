//! An opened device.
//!
//! Always true: whatever lives on a device (protection domains, queues, registrations) holds its [`Context`], so a
//! device is closed after all of it is gone. A process opens a device once, however many sessions it has.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rdma_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_port_attr};

use super::error::VerbsError;
use super::symbols::{Symbols, symbols};

/// libibverbs' list of devices; freed when dropped.
pub(super) struct DeviceList {
    symbols: &'static Symbols,
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    /// The list as it is now.
    pub(super) fn open() -> Result<Self, VerbsError> {
        let symbols = symbols()?;
        let mut count: c_int = 0;
        // SAFETY: a number to be filled in.
        let list = unsafe { (symbols.ibv_get_device_list)(&mut count) };
        let Some(list) = NonNull::new(list) else {
            let error = std::io::Error::last_os_error();
            // ENOSYS: the kernel has no RDMA modules loaded, so it has no devices either.
            if error.raw_os_error() == Some(libc::ENOSYS) {
                return Ok(Self { symbols, list: NonNull::dangling(), count: 0 });
            }
            return Err(VerbsError::Call {
                call: "ibv_get_device_list".into(),
                reason: error.to_string(),
                errno: error.raw_os_error().unwrap_or(0),
            });
        };
        let count = usize::try_from(count).unwrap_or(0);
        if count == 0 {
            // An empty list is allocated all the same.
            // SAFETY: just returned, and not used any more.
            unsafe { (symbols.ibv_free_device_list)(list.as_ptr()) };
        }
        Ok(Self { symbols, list, count })
    }

    fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: libibverbs promised `count` entries; where it gave no list, `count` is 0.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }

    fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: a device of this list, which is not freed yet.
        let name = unsafe { (self.symbols.ibv_get_device_name)(device) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: not null, and libibverbs' names end with a zero byte.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The devices' names.
    pub(super) fn names(&self) -> Vec<String> {
        self.devices().iter().map(|device| self.name(*device)).collect()
    }

    fn find(&self, name: &str) -> Option<*mut ibv_device> {
        self.devices().iter().copied().find(|device| self.name(*device) == name)
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: made by `ibv_get_device_list`, and freed once.
            unsafe { (self.symbols.ibv_free_device_list)(self.list.as_ptr()) };
        }
    }
}

/// An opened device; closed when dropped.
pub(super) struct Context {
    symbols: &'static Symbols,
    raw: NonNull<ibv_context>,
    name: String,
}

// SAFETY: libibverbs' functions on a context are safe to call from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of that name, or shares it if this process has it open.
    pub(super) fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        static OPENED: OnceLock<Mutex<HashMap<String, Weak<Context>>>> = OnceLock::new();
        let mut opened = OPENED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = opened.get(name).and_then(Weak::upgrade) {
            return Ok(context);
        }
        let list = DeviceList::open()?;
        let Some(device) = list.find(name) else {
            let found = list.names();
            let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
            return Err(VerbsError::Call {
                call: format!("opening device {name}"),
                reason: format!("there is no such device; found: {found}"),
                errno: libc::ENODEV,
            });
        };
        // SAFETY: a device of a list that is not freed yet.
        let raw = unsafe { (list.symbols.ibv_open_device)(device) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last_os(format!("ibv_open_device {name}")));
        };
        let context = Arc::new(Self { symbols: list.symbols, raw, name: name.to_owned() });
        opened.insert(name.to_owned(), Arc::downgrade(&context));
        Ok(context)
    }

    /// The functions.
    pub(super) fn symbols(&self) -> &'static Symbols {
        self.symbols
    }

    /// libibverbs' own.
    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// The device's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The device's attributes.
    pub(super) fn attributes(&self) -> Result<ibv_device_attr, VerbsError> {
        // SAFETY: a structure of numbers, for which zero is a value.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context and a structure to be filled in.
        let status = unsafe { (self.symbols.ibv_query_device)(self.raw(), &mut attributes) };
        if status != 0 {
            return Err(VerbsError::number(format!("ibv_query_device {}", self.name), status));
        }
        Ok(attributes)
    }

    /// A port's attributes.
    pub(super) fn port_attributes(&self, port: u8) -> Result<ibv_port_attr, VerbsError> {
        // SAFETY: a structure of numbers, for which zero is a value.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        let compat = (&raw mut attributes).cast();
        // The exported function fills in the structure's older and shorter form; what is behind it stays zero.
        // SAFETY: an open context and a structure that is longer than what is filled in.
        let status = unsafe { (self.symbols.ibv_query_port)(self.raw(), port, compat) };
        if status != 0 {
            return Err(VerbsError::number(format!("ibv_query_port {} {port}", self.name), status));
        }
        Ok(attributes)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once, and all that lived on it held this context.
        let status = unsafe { (self.symbols.ibv_close_device)(self.raw()) };
        if status != 0 {
            tracing::warn!(device = self.name, status, "ibv_close_device failed");
        }
    }
}
