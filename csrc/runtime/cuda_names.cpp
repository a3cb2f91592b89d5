// SPDX-License-Identifier: BSD-3-Clause
// torch reads every device name with one function that libc10 exports, a constructor of
// c10::Device. Its other libraries call that function through their import tables, so one entry per
// library decides how names are read: nothing is added to any call but one comparison per name
// read, and devices themselves keep their type, its identity and their equality.
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
#include <vector>

namespace torch_npusim {

namespace {

// c10::Device::Device(const std::string&), as g++ and clang write it.
constexpr const char* kReadName =
    "_ZN3c106DeviceC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

#if defined(__aarch64__)
constexpr unsigned kSlotTypes[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#else
constexpr unsigned kSlotTypes[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#endif

// Stands in for the constructor, whose calling convention is that of a function with `this` first.
// This module's own import still leads to libc10.
void read_name(c10::Device* self, const std::string& name) {
  new (self) c10::Device(name);
  if (self->is_cuda()) *self = c10::Device(c10::DeviceType::PrivateUse1, self->index());
}

struct Slot {
  void** address;
  void* before;
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

  // The entries through which this library calls `function`; the table of calls is tried first,
  // because the other is long.
  std::vector<Slot> imports_of(const char* function) const {
    std::vector<Slot> found;
    if (dynamic_ == nullptr) return found;
    collect(function, DT_JMPREL, DT_PLTRELSZ, &found);
    if (found.empty()) collect(function, DT_RELA, DT_RELASZ, &found);
    return found;
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

  void collect(const char* function, ElfW(Sxword) tag, ElfW(Sxword) size_tag,
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
      if (std::strcmp(names + symbol.st_name, function) != 0) continue;
      const ElfW(Addr) address = base_ + relocation.r_offset;
      void** slot = reinterpret_cast<void**>(address);
      found->push_back({slot, *slot, protected_from_ <= address && address < protected_to_});
    }
  }

  ElfW(Addr) base_;
  ElfW(Addr) protected_from_ = 0;
  ElfW(Addr) protected_to_ = 0;
  const ElfW(Dyn) * dynamic_ = nullptr;
};

int add_imports(dl_phdr_info* info, std::size_t, void* found) {
  const char* file = std::strrchr(info->dlpi_name, '/');
  if (file == nullptr || std::strncmp(file, "/libtorch", 9) != 0) return 0;
  auto* slots = static_cast<std::vector<Slot>*>(found);
  for (const Slot& slot : Library(*info).imports_of(kReadName)) slots->push_back(slot);
  return 0;
}

void protect(const Slot& slot, int protection) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(slot.address) / page * page;
  TORCH_CHECK(mprotect(reinterpret_cast<void*>(start), page, protection) == 0,
              "torch's import table cannot be changed (", std::strerror(errno),
              "), so \"cuda\" cannot be read as npusim here");
}

void store(const Slot& slot, void* function) {
  if (slot.read_only) protect(slot, PROT_READ | PROT_WRITE);
  std::atomic_ref<void*>(*slot.address).store(function, std::memory_order_release);
  if (slot.read_only) protect(slot, PROT_READ);
}

}  // namespace

void read_cuda_names_as_npusim(bool on) {
  static std::mutex mutex;
  static std::vector<Slot>* const redirected = new std::vector<Slot>();  // leaked: used at exit too
  const std::lock_guard<std::mutex> lock(mutex);
  if (on == !redirected->empty()) return;
  if (!on) {
    for (const Slot& slot : *redirected) store(slot, slot.before);
    redirected->clear();
    return;
  }
  std::vector<Slot> found;
  dl_iterate_phdr(&add_imports, &found);
  TORCH_CHECK(!found.empty(),
              "torch's libraries do not import c10::Device's constructor from a name, so \"cuda\" "
              "cannot be read as npusim; this torch is built unlike those that are known to work");
  for (const Slot& slot : found) {
    store(slot, reinterpret_cast<void*>(&read_name));
    redirected->push_back(slot);
  }
}

}  // namespace torch_npusim
