// SPDX-License-Identifier: BSD-3-Clause
// torch reads every device name with one function that libc10 exports, a constructor of
// c10::Device, and writes the one of PrivateUse1 with another, get_privateuse1_backend(). Its
// libraries (libc10 too) call them through their import tables, so one entry per library and
// function decides how names are read and written: nothing is added to any call, and devices
// themselves keep their type, its identity and their equality.
#include "csrc/runtime/cuda_names.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/visible_devices.h"
#include "csrc/cuda_rules/cuda_words.h"
#include "csrc/errors.h"

namespace torch_npusim {

namespace {

#if defined(__aarch64__)
constexpr unsigned kSlotTypes[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#else
constexpr unsigned kSlotTypes[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#endif

// Stands in for c10::Device::Device(const std::string&), whose calling convention is that of a
// function with `this` first. This module's own import still leads to libc10, which knows the name
// that core gave PrivateUse1 whatever get_privateuse1_backend() says.
void read_name(c10::Device* self, const std::string& name) {
  constexpr std::string_view kOwn = "npusim";
  const bool own = name.compare(0, kOwn.size(), kOwn) == 0;
  new (self) c10::Device(own ? "privateuseone" + name.substr(kOwn.size()) : name);
  if (self->is_cuda()) *self = c10::Device(c10::DeviceType::PrivateUse1, self->index());
}

// Stands in for c10::get_privateuse1_backend().
std::string write_name(bool lower_case) { return lower_case ? "cuda" : "CUDA"; }

// A kernel of the CPU that runs for a device tensor names itself in its errors. These stand in for
// a constructor of c10::NotImplementedError and for c10::detail::torchCheckFail().
void make_error(c10::NotImplementedError* self, c10::SourceLocation where, std::string text) {
  if (npusim::in_command_body()) text = in_cuda_words(std::move(text));
  new (self) c10::NotImplementedError(where, std::move(text));
}

[[noreturn]] void fail(const char* function, const char* file, std::uint32_t line,
                       const std::string& text) {
  c10::detail::torchCheckFail(
      function, file, line,
      with_cuda_types(npusim::in_command_body() ? in_cuda_words(text) : text));
}

// A function of libc10, as g++ and clang write its name, and what stands in for it.
struct Redirection {
  const char* symbol;
  void* function;
  bool is_needed = true;  // nothing works without it
};

const Redirection kRedirections[] = {
    {"_ZN3c106DeviceC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
     reinterpret_cast<void*>(&read_name)},
    {"_ZN3c1023get_privateuse1_backendB5cxx11Eb", reinterpret_cast<void*>(&write_name)},
    {"_ZN3c1019NotImplementedErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_"
     "traitsIcESaIcEEE",
     reinterpret_cast<void*>(&make_error), false},
    {"_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
     reinterpret_cast<void*>(&fail), false},
};

struct Slot {
  void** address;
  void* before;
  void* after;
  bool read_only;  // part of what the loader protects after relocation
};

class Library {
 public:
  explicit Library(const dl_phdr_info& info) : base_(info.dlpi_addr) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const ElfW(Phdr) & header = info.dlpi_phdr[i];
      if (header.p_type == PT_DYNAMIC) {
        dynamic_ = reinterpret_cast<const ElfW(Dyn)*>(base_ + header.p_vaddr);
      } else if (header.p_type == PT_GNU_RELRO) {
        protected_from_ = base_ + header.p_vaddr;
        protected_to_ = protected_from_ + header.p_memsz;
      }
    }
  }

  // Adds the entries through which this library calls the function; the table of calls is tried
  // first, because the other is long.
  void add_imports(const Redirection& redirection, std::vector<Slot>* found) const {
    if (dynamic_ == nullptr) return;
    const std::size_t before = found->size();
    collect(redirection, DT_JMPREL, DT_PLTRELSZ, found);
    if (found->size() == before) collect(redirection, DT_RELA, DT_RELASZ, found);
  }

 private:
  ElfW(Xword) entry(ElfW(Sxword) tag) const {
    for (const ElfW(Dyn)* item = dynamic_; item->d_tag != DT_NULL; ++item) {
      if (item->d_tag == tag) return item->d_un.d_val;
    }
    return 0;
  }

  // Some loaders leave offsets in the dynamic section, others addresses.
  template <class T>
  const T* table(ElfW(Sxword) tag) const {
    const ElfW(Addr) value = entry(tag);
    return value == 0 ? nullptr : reinterpret_cast<const T*>(value < base_ ? base_ + value : value);
  }

  void collect(const Redirection& redirection, ElfW(Sxword) tag, ElfW(Sxword) size_tag,
               std::vector<Slot>* found) const {
    const auto* relocations = table<ElfW(Rela)>(tag);
    const auto* symbols = table<ElfW(Sym)>(DT_SYMTAB);
    const auto* names = table<char>(DT_STRTAB);
    if (relocations == nullptr || symbols == nullptr || names == nullptr) return;
    const std::size_t count = entry(size_tag) / sizeof(ElfW(Rela));
    for (std::size_t i = 0; i < count; ++i) {
      const ElfW(Rela) & relocation = relocations[i];
      const auto type = static_cast<unsigned>(ELF64_R_TYPE(relocation.r_info));
      if (type != kSlotTypes[0] && type != kSlotTypes[1]) continue;
      const ElfW(Sym) & symbol = symbols[ELF64_R_SYM(relocation.r_info)];
      if (std::strcmp(names + symbol.st_name, redirection.symbol) != 0) continue;
      const ElfW(Addr) address = base_ + relocation.r_offset;
      void** slot = reinterpret_cast<void**>(address);
      found->push_back({slot, *slot, redirection.function,
                        protected_from_ <= address && address < protected_to_});
    }
  }

  ElfW(Addr) base_;
  ElfW(Addr) protected_from_ = 0;
  ElfW(Addr) protected_to_ = 0;
  const ElfW(Dyn) * dynamic_ = nullptr;
};

// What is found, and how often for each of kRedirections.
struct Found {
  std::vector<Slot> slots;
  std::size_t count[std::size(kRedirections)] = {};
};

int add_library(dl_phdr_info* info, std::size_t, void* data) {
  const char* file = std::strrchr(info->dlpi_name, '/');
  if (file == nullptr) return 0;
  if (std::strncmp(file, "/libtorch", 9) != 0 && std::strcmp(file, "/libc10.so") != 0) return 0;
  auto* found = static_cast<Found*>(data);
  const Library library(*info);
  for (std::size_t i = 0; i < std::size(kRedirections); ++i) {
    const std::size_t before = found->slots.size();
    library.add_imports(kRedirections[i], &found->slots);
    found->count[i] += found->slots.size() - before;
  }
  return 0;
}

void protect(const Slot& slot, int protection) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(slot.address) / page * page;
  TORCH_CHECK(mprotect(reinterpret_cast<void*>(start), page, protection) == 0,
              "torch's import table cannot be changed (", std::strerror(errno),
              "), so npusim cannot be called \"cuda\" here");
}

void store(const Slot& slot, void* function) {
  if (slot.read_only) protect(slot, PROT_READ | PROT_WRITE);
  std::atomic_ref<void*>(*slot.address).store(function, std::memory_order_release);
  if (slot.read_only) protect(slot, PROT_READ);
}

}  // namespace

namespace {
std::atomic<bool> g_called_cuda{false};
}  // namespace

bool is_called_cuda() noexcept { return g_called_cuda.load(std::memory_order_acquire); }

void call_npusim_cuda(bool on) {
  static std::mutex mutex;
  static std::vector<Slot>* const redirected = new std::vector<Slot>();  // leaked: used at exit too
  const std::lock_guard<std::mutex> lock(mutex);
  if (on == !redirected->empty()) return;
  if (!on) {
    for (const Slot& slot : *redirected) store(slot, slot.before);
    redirected->clear();
    g_speaks_cuda = false;
    npusim::follow_cuda(false);
    g_called_cuda.store(false, std::memory_order_release);
    return;
  }
  Found found;
  dl_iterate_phdr(&add_library, &found);
  for (std::size_t i = 0; i < std::size(kRedirections); ++i) {
    TORCH_CHECK(found.count[i] != 0 || !kRedirections[i].is_needed,
                "torch's libraries do not import ", kRedirections[i].symbol,
                ", so npusim cannot be called \"cuda\"; this torch is built unlike those that are "
                "known to work");
  }
  for (const Slot& slot : found.slots) store(slot, slot.after);
  *redirected = std::move(found.slots);
  g_speaks_cuda = true;
  npusim::follow_cuda(true);
  g_called_cuda.store(true, std::memory_order_release);
}

}  // namespace torch_npusim
