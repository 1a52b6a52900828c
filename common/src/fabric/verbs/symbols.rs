//! libibverbs' and librdmacm's functions, found at run time.
//!
//! Always true: nothing here is linked, so a program with this code starts on a host without the libraries and
//! says, when asked for verbs, which one is missing. Once loaded, the libraries stay for the life of the process.
//!
//! Only the control path comes through here. Posting and polling go through the operation tables that the
//! driver put into its context, as the header's inline functions do.
//!
//! Several of libibverbs' symbols exist in two versions. A lookup by name alone gives the default version, which
//! is the one of the headers (`IBVERBS_1.1`); a test holds the loader to that.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;
use rdma_sys::{
    _compat_ibv_port_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr,
    ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space,
};

use super::error::VerbsError;

/// A library to be loaded and the Debian package that has it.
struct Source {
    library: &'static str,
    package: &'static str,
}

const IBVERBS: Source = Source { library: "libibverbs.so.1", package: "libibverbs1" };
const RDMACM: Source = Source { library: "librdmacm.so.1", package: "librdmacm1" };

macro_rules! symbols {
    ($($source:ident { $($name:ident: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)* })*) => {
        /// The functions. Each is as its manual page says.
        #[allow(missing_docs)]
        pub(super) struct Symbols {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        fn load() -> Result<Symbols, VerbsError> {
            // libibverbs first: librdmacm needs it, and its absence is the likelier one.
            let ibverbs = open(&IBVERBS)?;
            let rdmacm = open(&RDMACM)?;
            let library = |source: &Source| if source.library == IBVERBS.library { ibverbs } else { rdmacm };
            Ok(Symbols { $($(
                $name: {
                    // SAFETY: the type is the one of rdma-core's header, whose ABI the library's name fixes.
                    let found = unsafe {
                        library(&$source).get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                            concat!(stringify!($name), "\0").as_bytes(),
                        )
                    };
                    *found.map_err(|error| VerbsError::SymbolMissing {
                        symbol: stringify!($name),
                        library: $source.library,
                        package: $source.package,
                        reason: error.to_string(),
                    })?
                },
            )*)* })
        }

        #[cfg(test)]
        const NAMES: &[(&str, &str)] = &[$($((stringify!($name), stringify!($source)),)*)*];
    };
}

symbols! {
    IBVERBS {
        ibv_fork_init: fn() -> c_int;
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list: fn(*mut *mut ibv_device);
        ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device: fn(*mut ibv_context) -> c_int;
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port: fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
        ibv_wc_status_str: fn(c_uint) -> *const c_char;
    }
    RDMACM {
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        rdma_destroy_event_channel: fn(*mut rdma_event_channel);
        rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space::Type) -> c_int;
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_init_qp_attr: fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_establish: fn(*mut rdma_cm_id) -> c_int;
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
        rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
    }
}

fn open(source: &Source) -> Result<&'static Library, VerbsError> {
    // SAFETY: the library's initialisers are rdma-core's own and have no preconditions.
    let library = unsafe { Library::new(source.library) };
    match library {
        // Never unloaded: its functions, and the drivers' that it loads, are used until the process ends.
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => Err(VerbsError::LibraryMissing {
            library: source.library,
            package: source.package,
            reason: error.to_string(),
        }),
    }
}

/// The functions, loaded at the first call. A failure is final for this process.
///
/// # Errors
/// [`VerbsError::LibraryMissing`] or [`VerbsError::SymbolMissing`].
pub(super) fn symbols() -> Result<&'static Symbols, VerbsError> {
    static SYMBOLS: OnceLock<Result<Symbols, VerbsError>> = OnceLock::new();
    SYMBOLS
        .get_or_init(|| {
            let symbols = load()?;
            // Before any other verb, as its manual asks. Where the kernel copies pinned pages on fork (5.12 and
            // later) it does nothing; elsewhere it keeps a fork from moving pages under the card. It fails
            // only if memory is already registered, which is then someone else's choice.
            // SAFETY: no arguments; called before any other verb of this module.
            let status = unsafe { (symbols.ibv_fork_init)() };
            if status != 0 {
                tracing::warn!(status, "ibv_fork_init failed: forking with registered memory is unsafe");
            }
            Ok(symbols)
        })
        .as_ref()
        .map_err(Clone::clone)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    /// Every symbol is there, and the one that a lookup by name finds is the headers' version: the older one has
    /// other structures, and calling it corrupts memory.
    #[test]
    fn symbols_are_the_versions_of_the_headers() {
        if let Err(error) = symbols() {
            println!("SKIP: {error}");
            return;
        }
        let (ibverbs, rdmacm) = (open(&IBVERBS).unwrap(), open(&RDMACM).unwrap());
        for (name, source) in NAMES {
            // Newest first: what has a newer version must be found in it.
            let (library, soname, versions) = match *source {
                "IBVERBS" => (ibverbs, IBVERBS.library, ["IBVERBS_1.1", "IBVERBS_1.0"]),
                _ => (rdmacm, RDMACM.library, ["RDMACM_1.2", "RDMACM_1.0"]),
            };
            let (name, soname) = (CString::new(*name).unwrap(), CString::new(soname).unwrap());
            // SAFETY: the symbol is only looked up, not called.
            let plain = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes_with_nul()) }.unwrap();
            // SAFETY: a name that ends with a zero byte; the library is already loaded.
            let handle = unsafe { libc::dlopen(soname.as_ptr(), libc::RTLD_NOW) };
            let versioned = versions.map(|version| {
                let version = CString::new(version).unwrap();
                // SAFETY: an open handle and names that end with zero bytes.
                unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) }
            });
            let newest = versioned.into_iter().find(|found| !found.is_null());
            assert_eq!(Some(*plain as *mut c_void), newest, "{name:?} of {versioned:?}");
        }
    }

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let error = open(&Source { library: "libibverbs-none.so.9", package: "libibverbs1" }).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("libibverbs-none.so.9") && text.contains("apt-get install libibverbs1"),
            "{text}"
        );
    }
}
