// fmt's own functions, compiled once. As headers alone, every file that formats a text would
// compile them again, for 4 s of a processor, or 9 under the sanitizers. Not as a shared library,
// which everyone who links ours would need beside it.
#include <fmt/format-inl.h>

#if !defined(FMT_HEADER_ONLY)
// Templates that its headers only declare.
template char fmt::detail::decimal_point_impl<char>(locale_ref);
template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl<char>(locale_ref);
template fmt::detail::dragonbox::decimal_fp<float> fmt::detail::dragonbox::to_decimal(
    float) noexcept;
template fmt::detail::dragonbox::decimal_fp<double> fmt::detail::dragonbox::to_decimal(
    double) noexcept;
template std::locale fmt::detail::locale_ref::get<std::locale>() const;  // for dates
#endif
