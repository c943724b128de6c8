// Rows that every block computes, and keeps one after the other in its shared memory: what a product reads next.

template <class T> DEVICE void keep_columns(T* row, const typename Stored<T>::Value (&value)[WIDTH], const Span& span) {
  static_assert(!SHIFTED, "vectors lie inside their row");
  *reinterpret_cast<Pack<T, WIDTH>*>(row + span.offset) = packed_as<WIDTH>(row, value);
}
