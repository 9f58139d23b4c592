# cython: language_level=3, cdivision=True
"""Runs of plain send requests: from received bytes to records, answers, units of queues and entries of the key index.

Invariant: a run holds only requests of which every byte that the Python path would look at is understood here; otherwise
`scan_sends` stops before the request, or the caller gives the whole run to the Python path, which is the specification.
Nothing here does I/O or remembers anything between calls. Received bytes are read through `octet` and checked spans only, and
written through `Writer` only, so that no length in them leads outside a buffer.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.string cimport memchr, memcmp, memcpy

cdef enum:
    SEND_MESSAGE_V2 = 310
    ONEWAY_FLAG = 2
    # Frames and headers, as `remoting/command.py` and `remoting/binary_header.py` have them.
    FRAME_SIZE_MAX = 16 * 1024 * 1024
    HEADER_SIZE_MAX = 256 * 1024
    FRAME_HEAD_SIZE = 8
    BINARY_BLOCK_AT = 21
    # Compressed, several tags, kind of compression: the flags of a message that need no further look.
    PLAIN_FLAGS = 0x703
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    HEAD_V4_SIZE = 88
    TOPIC_BYTES_MAX = 127
    PROPERTIES_MAX = 8000  # the longest properties that fit every limit, whatever is added to them
    TOPICS_MAX = 16
    QUEUES_MAX = 256
    DIGITS_OF_INT = 9
    DIGITS_OF_LONG = 18
    TRANSACTION_FLAGS = 0xC
    UNIT_SIZE = 20
    INDEX_ENTRY_SIZE = 20


cdef long long LONG_MAX = 0x7FFFFFFFFFFFFFFF


cdef struct Span:
    Py_ssize_t at
    Py_ssize_t size


cdef struct Writer:
    unsigned char* at
    unsigned char* end


cdef struct Send:
    Span body
    # The next four are in the text of the run.
    Span properties
    Span tag
    Span unique_key
    Span keys
    long long born
    long long queue_offset
    int opaque
    int flag
    int sys_flag
    int queue  # index in the queues of the run
    int size  # bytes of the record
    bint binary
    bint oneway


# ---------------------------------------------------------------- reading bytes


cdef struct Octets:
    const unsigned char* start
    Py_ssize_t size


cdef inline int octet(Octets octets, Py_ssize_t at) noexcept:
    """The byte at a position; -1, which is equal to no byte, outside."""
    return octets.start[at] if 0 <= at < octets.size else -1


cdef inline const unsigned char* bytes_of(Octets octets, Span span) except NULL:
    """The first byte of a span."""
    if span.at < 0 or span.size < 0 or span.size > octets.size - span.at:
        raise AssertionError("a span is inside its bytes")
    return octets.start + span.at


cdef inline long long get_u32(Octets octets, Py_ssize_t at) noexcept:
    """The unsigned number in four bytes; -1 outside."""
    cdef const unsigned char* start = octets.start + at
    if at < 0 or octets.size - at < 4:
        return -1
    return <long long> start[0] << 24 | <long long> start[1] << 16 | <long long> start[2] << 8 | start[3]


cdef inline bint is_ascii(Octets octets, Span span) except -1:
    cdef Py_ssize_t at
    cdef unsigned char found = 0
    cdef const unsigned char* start = bytes_of(octets, span)
    for at in range(span.size):
        found |= start[at]
    return found < 0x80


cdef inline long long number_in(Octets octets, Span span, int digits_max) noexcept:
    """The number that a span has in decimal digits; -1 if it is empty, too long, or anything else."""
    cdef long long number = 0
    cdef Py_ssize_t at
    cdef int digit
    if not 0 < span.size <= digits_max:
        return -1
    for at in range(span.at, span.at + span.size):
        digit = octet(octets, at) - 48
        if not 0 <= digit <= 9:
            return -1
        number = number * 10 + digit
    return number


cdef inline bint is_text(Octets octets, Span span, const char* wanted, Py_ssize_t size) except -1:
    return span.size == size and memcmp(bytes_of(octets, span), wanted, size) == 0


cdef inline bint ends_with(const unsigned char* name, Py_ssize_t size, const char* ending, Py_ssize_t ending_size) noexcept:
    return size >= ending_size and memcmp(name + size - ending_size, ending, ending_size) == 0


# ---------------------------------------------------------------- JSON headers


cdef inline Py_ssize_t skip_spaces(Octets octets, Py_ssize_t at) noexcept:
    cdef int one = octet(octets, at)
    while one == 32 or one == 10 or one == 13 or one == 9:
        at += 1
        one = octet(octets, at)
    return at


cdef inline Py_ssize_t string_end(Octets octets, Py_ssize_t at) noexcept:
    """The position of the quote that ends a string of plain ASCII whose first character is at `at`; -1 for any other string."""
    cdef int one = octet(octets, at)
    while one != 34:
        if one == 92 or one < 32 or one >= 0x80:
            return -1
        at += 1
        one = octet(octets, at)
    return at


cdef Py_ssize_t json_integer(Octets octets, Py_ssize_t at, int* number) noexcept:
    """Read an int as `number`; returns where it ends, -1 if there is none in its shortest form."""
    cdef bint negative = octet(octets, at) == 45
    cdef Span digits
    digits.at, digits.size = at + negative, 0
    while 48 <= octet(octets, digits.at + digits.size) <= 57:
        digits.size += 1
    if octet(octets, digits.at) == 48 and (digits.size > 1 or negative):
        return -1
    cdef long long found = number_in(octets, digits, DIGITS_OF_INT + 1)
    if not 0 <= found <= 0x7FFFFFFF:
        return -1
    number[0] = <int> (-found if negative else found)
    return digits.at + digits.size


cdef inline int hex_digit(int one) noexcept:
    if 48 <= one <= 57:
        return one - 48
    one |= 32
    return one - 87 if 97 <= one <= 102 else -1


# ---------------------------------------------------------------- runs


cdef class SendRun:
    """See `SendRun` in `__init__.py`."""

    cdef readonly bytes received
    cdef readonly Py_ssize_t end
    cdef readonly Py_ssize_t body_max
    cdef readonly list queues
    cdef bytearray text
    cdef Py_ssize_t text_size
    cdef Send* sends
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef int topic_count
    cdef Span[TOPICS_MAX] topics
    cdef int queue_count
    cdef int[QUEUES_MAX] queue_topics
    cdef int[QUEUES_MAX] queue_ids
    cdef int[QUEUES_MAX] queue_counts

    def __dealloc__(self):
        PyMem_Free(self.sends)

    def __len__(self):
        return self.count

    @property
    def counts(self):
        return [self.queue_counts[at] for at in range(self.queue_count)]

    @property
    def topics_of_messages(self):
        return [self.queues[self.sends[at].queue][0] for at in range(self.count)]

    @property
    def unanswered(self):
        return [(self.sends[at].opaque, int(self.sends[at].binary)) for at in range(self.count) if not self.sends[at].oneway]

    cdef Octets written(self):
        """The text."""
        cdef Octets octets
        octets.start, octets.size = <const unsigned char*> PyByteArray_AS_STRING(self.text), len(self.text)
        return octets

    cdef int scan(self) except -1:
        """Read requests until one is no plain send or is incomplete."""
        cdef Octets octets, header
        cdef Py_ssize_t at = 0, body_at
        cdef long long length, word
        cdef Span[26] fields
        cdef Send* send
        cdef int each
        octets.start, octets.size = <const unsigned char*> PyBytes_AS_STRING(self.received), len(self.received)
        while octets.size - at >= FRAME_HEAD_SIZE:
            length, word = get_u32(octets, at), get_u32(octets, at + 4)
            body_at = at + FRAME_HEAD_SIZE + (word & 0xFFFFFF)
            if not 4 <= length <= FRAME_SIZE_MAX - 4 or length > octets.size - at - 4:
                break
            if body_at > at + 4 + length or word & 0xFFFFFF > HEADER_SIZE_MAX:
                break
            header.start, header.size = octets.start, body_at  # nothing behind the header can be read as a part of it
            self.grow()
            send = &self.sends[self.count]
            send.binary = word >> 24 == 1
            for each in range(26):
                fields[each].size = -1
            if send.binary:
                if not self.read_binary(header, at + FRAME_HEAD_SIZE, fields, send):
                    break
            elif word >> 24 != 0 or not self.read_json(header, at + FRAME_HEAD_SIZE, fields, send):
                break
            if not self.read_properties(send) or not self.take(header, fields, send):
                break
            send.body.at, send.body.size = body_at, at + 4 + length - body_at
            self.body_max = max(self.body_max, send.body.size)
            self.queue_counts[send.queue] += 1
            self.text_size += send.properties.size
            self.count += 1
            at += 4 + length
        self.end = at
        return 0

    cdef int grow(self) except -1:
        cdef Send* sends
        if self.count == self.room:
            sends = <Send*> PyMem_Realloc(self.sends, (self.room * 4 + 16) * sizeof(Send))
            if sends is NULL:
                raise MemoryError
            self.sends = sends
            self.room = self.room * 4 + 16
        return 0

    cdef bint read_binary(self, Octets header, Py_ssize_t at, Span* fields, Send* send) except -1:
        """Find the fields of a binary header that begins at `at` and ends with `header`."""
        cdef long long size = get_u32(header, at + 17), flag = get_u32(header, at + 9)
        cdef int field
        cdef Span value
        cdef Writer writer = self.writer()
        if size < 0 or size != header.size - at - BINARY_BLOCK_AT or get_u32(header, at + 13) != 0:  # with a remark
            return False
        if octet(header, at) << 8 | octet(header, at + 1) != SEND_MESSAGE_V2 or (flag != 0 and flag != ONEWAY_FLAG):
            return False
        send.opaque, send.oneway = <int> get_u32(header, at + 5), flag == ONEWAY_FLAG
        at += BINARY_BLOCK_AT
        while at < header.size:
            field, size = octet(header, at + 2) - 97, get_u32(header, at + 3)
            if octet(header, at) != 0 or octet(header, at + 1) != 1:  # the length of a name
                return False
            at += 7
            if not 0 <= field < 26 or not 0 <= size <= header.size - at or fields[field].size >= 0:
                return False
            value.at, value.size = at, size
            if not is_ascii(header, value):
                return False
            if size != 0:  # else the field counts as absent
                fields[field] = value
            at += size
        send.properties.at, send.properties.size = self.text_size, max(fields[8].size, 0)
        if send.properties.size > PROPERTIES_MAX:
            return False
        if send.properties.size:
            put_span(&writer, header, fields[8])
        return True

    cdef Writer writer(self):
        """Writes to the text."""
        cdef Writer writer
        writer.at = <unsigned char*> PyByteArray_AS_STRING(self.text) + self.text_size
        writer.end = <unsigned char*> PyByteArray_AS_STRING(self.text) + len(self.text)
        return writer

    cdef bint read_json(self, Octets header, Py_ssize_t at, Span* fields, Send* send) except -1:
        """Find the fields of a JSON header that is written as clients do, without anything unknown."""
        cdef int seen = 0, key, number, code = 0, flag = 0, after
        cdef Span name
        send.opaque = 0
        send.properties.at, send.properties.size = self.text_size, 0
        at = skip_spaces(header, at)
        if octet(header, at) != 123:
            return False
        while True:
            at = skip_spaces(header, at + 1)
            if octet(header, at) != 34:
                return False
            name.at = at + 1
            at = string_end(header, name.at)
            name.size = at - name.at
            if at < 0:
                return False
            at = skip_spaces(header, at + 1)
            if octet(header, at) != 58:
                return False
            at = skip_spaces(header, at + 1)
            if is_text(header, name, b"extFields", 9):
                key, at = 1, self.read_json_fields(header, at, fields, send)
            elif is_text(header, name, b"language", 8) or is_text(header, name, b"serializeTypeCurrentRPC", 23):
                key = 2 if name.size == 8 else 4
                at = string_end(header, at + 1) + 1 if octet(header, at) == 34 else -1
            elif is_text(header, name, b"code", 4):
                key, at = 8, json_integer(header, at, &code)
            elif is_text(header, name, b"flag", 4):
                key, at = 16, json_integer(header, at, &flag)
            elif is_text(header, name, b"opaque", 6):
                key, at = 32, json_integer(header, at, &send.opaque)
            elif is_text(header, name, b"version", 7):
                key, at = 64, json_integer(header, at, &number)
            else:
                return False
            if at <= 0 or seen & key:
                return False
            seen |= key
            at = skip_spaces(header, at)
            after = octet(header, at)
            if after == 125:
                break
            if after != 44:
                return False
        send.oneway = flag == ONEWAY_FLAG
        return skip_spaces(header, at + 1) == header.size and code == SEND_MESSAGE_V2 and (flag == 0 or send.oneway)

    cdef Py_ssize_t read_json_fields(self, Octets header, Py_ssize_t at, Span* fields, Send* send) except -2:
        """Find the fields in `extFields`, whose names are single letters; returns where the object ends, -1 for any other one."""
        cdef int field, after
        cdef Span value
        if octet(header, at) != 123:
            return -1
        while True:
            at = skip_spaces(header, at + 1)
            field = octet(header, at + 1) - 97
            if octet(header, at) != 34 or octet(header, at + 2) != 34 or not 0 <= field < 26 or fields[field].size >= 0:
                return -1
            at = skip_spaces(header, at + 3)
            if octet(header, at) != 58:
                return -1
            at = skip_spaces(header, at + 1)
            if octet(header, at) != 34:
                return -1
            value.at = at + 1
            at = self.read_json_properties(header, value.at, send) if field == 8 else string_end(header, value.at)
            value.size = at - value.at
            if at < 0:
                return -1
            fields[field] = value
            at = skip_spaces(header, at + 1)
            after = octet(header, at)
            if after == 125:
                return at + 1
            if after != 44:
                return -1

    cdef Py_ssize_t read_json_properties(self, Octets header, Py_ssize_t at, Send* send) except -2:
        """Write the properties to the text, unescaped; returns the position of the quote that ends them, -1 if not ASCII."""
        cdef Writer writer = self.writer()
        cdef unsigned char* start = writer.at
        cdef int one = octet(header, at), high
        while one != 34:
            if one < 32 or one >= 0x80:
                return -1
            if one == 92:
                at += 1
                one = octet(header, at)
                if one == 117:  # \u00XX
                    high, one = hex_digit(octet(header, at + 3)), hex_digit(octet(header, at + 4))
                    if octet(header, at + 1) != 48 or octet(header, at + 2) != 48 or not 0 <= high <= 7 or one < 0:
                        return -1
                    one |= high << 4
                    at += 4
                elif one != 34 and one != 92 and one != 47:
                    return -1
            put_octet(&writer, <unsigned char> one)
            at += 1
            one = octet(header, at)
        send.properties.size = writer.at - start
        return at if send.properties.size <= PROPERTIES_MAX else -1

    cdef bint take(self, Octets octets, Span* fields, Send* send) except -1:
        """Check the fields of a request and remember what is needed of them."""
        cdef Span topic = fields[1]
        cdef long long queue_id = number_in(octets, fields[4], DIGITS_OF_INT)
        cdef long long sys_flag = number_in(octets, fields[5], DIGITS_OF_INT)
        cdef long long flag = number_in(octets, fields[7], DIGITS_OF_INT)
        cdef int found
        send.born = number_in(octets, fields[6], DIGITS_OF_LONG)
        if queue_id < 0 or sys_flag < 0 or flag < 0 or send.born < 0 or sys_flag & ~PLAIN_FLAGS:
            return False
        if fields[9].size > 0 and not is_text(octets, fields[9], b"0", 1):  # times of retry
            return False
        if fields[12].size > 0 and is_text(octets, fields[12], b"true", 4):  # a batch
            return False
        if not 0 < topic.size <= TOPIC_BYTES_MAX:
            return False
        send.flag, send.sys_flag = <int> flag, <int> sys_flag
        found = self.topic_index(octets, topic)
        if found < 0:
            return False
        send.queue = self.queue_index(found, <int> queue_id)
        return send.queue >= 0

    cdef int topic_index(self, Octets octets, Span topic) except -2:
        cdef int at
        for at in range(self.topic_count):
            if is_text(octets, self.topics[at], <const char*> bytes_of(octets, topic), topic.size):
                return at
        if self.topic_count == TOPICS_MAX:
            return -1
        self.topics[self.topic_count] = topic
        self.topic_count += 1
        return self.topic_count - 1

    cdef int queue_index(self, int topic, int queue_id) except -2:
        # Most clients send to one queue after the other, so the search begins behind the queue of the last message.
        cdef int start = self.sends[self.count - 1].queue + 1 if self.count else 0, step, at
        for step in range(self.queue_count):
            at = (start + step) % self.queue_count
            if self.queue_ids[at] == queue_id and self.queue_topics[at] == topic:
                return at
        if self.queue_count == QUEUES_MAX:
            return -1
        self.queue_topics[self.queue_count], self.queue_ids[self.queue_count] = topic, queue_id
        self.queue_counts[self.queue_count] = 0
        self.queue_count += 1
        return self.queue_count - 1

    cdef bint read_properties(self, Send* send) except -1:
        """Find tag and keys in properties that are written as clients do, and have none that changes how a message is put."""
        cdef const unsigned char* start = bytes_of(self.written(), send.properties)
        cdef const unsigned char* end = start + send.properties.size
        cdef const unsigned char* name = start
        cdef const unsigned char* name_end
        cdef const unsigned char* item_end
        cdef Py_ssize_t size
        cdef Span value
        cdef Span* kept
        send.tag = send.unique_key = send.keys = Span(0, 0)
        if memchr(start, 0, end - start) is not NULL:
            return False
        while name < end:
            item_end = <const unsigned char*> memchr(name, 2, end - name)
            if item_end is NULL:
                item_end = end
            name_end = <const unsigned char*> memchr(name, 1, item_end - name)
            if name_end is NULL or name_end == name or name_end + 1 == item_end:
                return False
            if memchr(name_end + 1, 1, item_end - name_end - 1) is not NULL:
                return False
            size = name_end - name
            kept = NULL
            value.at, value.size = name_end + 1 - start + send.properties.at, item_end - name_end - 1
            if size == 4:
                if memcmp(name, b"TAGS", 4) == 0:
                    kept = &send.tag
                elif memcmp(name, b"KEYS", 4) == 0:
                    kept = &send.keys
                elif memcmp(name, b"WAIT", 4) == 0 and value.size == 5 and memcmp(name_end + 1, b"false", 5) == 0:
                    return False
            elif size == 8 and memcmp(name, b"UNIQ_KEY", 8) == 0:
                kept = &send.unique_key
            elif ends_with(name, size, b"DELAY", 5) or ends_with(name, size, b"TRAN_MSG", 8):
                return False
            elif size > 6 and memcmp(name, b"TIMER_", 6) == 0:
                return False
            elif ends_with(name, size, b"LMQ_SEND", 8) or ends_with(name, size, b"INNER_MULTI_DISPATCH", 20):
                return False
            if kept is not NULL:
                kept[0] = value
            name = item_end + 1
        return True

    def encode(self, list topic_fields, list starts, long long now, bytes born_host, bytes store_host, bytes addition, crc32):
        if not len(topic_fields) == len(starts) == self.queue_count:
            raise ValueError("one topic and one queue offset for each queue")
        cdef Octets text = self.written()
        cdef long long[QUEUES_MAX] next_offsets
        cdef Py_ssize_t at, head_size = HEAD_V4_SIZE - 16 + len(born_host) + len(store_host), size, properties_size
        cdef int hosts = (BORN_HOST_V6 if len(born_host) == 20 else 0) | (STORE_HOST_V6 if len(store_host) == 20 else 0)
        cdef Send* send
        cdef Writer writer
        cdef bytes record, body, topic
        cdef bint unended
        cdef list records = []
        for at in range(self.queue_count):
            next_offsets[at] = starts[at]
        for at in range(self.count):
            send = &self.sends[at]
            topic = topic_fields[send.queue]
            send.queue_offset = next_offsets[send.queue]
            next_offsets[send.queue] += 1
            unended = send.properties.size > 0 and octet(text, send.properties.at + send.properties.size - 1) != 2
            properties_size = send.properties.size + unended + len(addition)
            size = head_size + send.body.size + len(topic) + 2 + properties_size
            send.size = <int> size
            record = PyBytes_FromStringAndSize(NULL, size)
            body = self.received[send.body.at : send.body.at + send.body.size]
            writer.at = <unsigned char*> PyBytes_AS_STRING(record)
            writer.end = writer.at + size
            put_u32(&writer, <unsigned int> size)
            put_u32(&writer, 0xDAA320A7)
            put_u32(&writer, <unsigned int> crc32(body) & 0x7FFFFFFF)
            put_u32(&writer, <unsigned int> self.queue_ids[send.queue])
            put_u32(&writer, <unsigned int> send.flag)
            put_u64(&writer, <unsigned long long> send.queue_offset)
            put_u64(&writer, 0)
            put_u32(&writer, <unsigned int> (send.sys_flag | hosts))
            put_u64(&writer, <unsigned long long> send.born)
            put_bytes(&writer, born_host)
            put_u64(&writer, <unsigned long long> now)
            put_bytes(&writer, store_host)
            put_u32(&writer, 0)
            put_u64(&writer, 0)
            put_u32(&writer, <unsigned int> send.body.size)
            put_bytes(&writer, body)
            put_bytes(&writer, topic)
            put_u16(&writer, <unsigned int> properties_size)
            put_span(&writer, text, send.properties)
            if unended:
                put_octet(&writer, 2)
            put_bytes(&writer, addition)
            if writer.at != writer.end:
                raise AssertionError("a record has the size that its parts have together")
            records.append(record)
        return records

    def derivables(self, list offsets, now):
        cdef Octets text = self.written()
        cdef Py_ssize_t at
        cdef Send* send
        cdef tuple queue
        cdef list found = []
        if len(offsets) != self.count:
            raise ValueError("one physical offset for each message")
        for at in range(self.count):
            send = &self.sends[at]
            queue = self.queues[send.queue]
            found.append(
                (
                    queue[0],
                    queue[1],
                    send.queue_offset,
                    offsets[at],
                    send.size,
                    java_hash(text, send.tag),
                    now,
                    send.sys_flag,
                    text_of(text, send.unique_key),
                    text_of(text, send.keys),
                    "",
                )
            )
        return found

    @property
    def queue_offsets(self):
        return [self.sends[at].queue_offset for at in range(self.count)]

    def answers(self, list offsets, tuple json_parts, tuple binary_parts):
        cdef bytes before_id, before_queue, before_offset, before_opaque, last, head, fields, queue_name, offset_name
        before_id, before_queue, before_offset, before_opaque, last = json_parts
        head, fields, queue_name, offset_name = binary_parts
        if len(offsets) != self.count or len(head) != FRAME_HEAD_SIZE + BINARY_BLOCK_AT:
            raise ValueError("one physical offset for each message, and a head without fields")
        cdef Py_ssize_t at, size_max = 128 + max(
            len(before_id) + len(before_queue) + len(before_offset) + len(before_opaque) + len(last),
            len(head) + len(fields) + len(queue_name) + len(offset_name),
        )
        cdef bytearray answers = PyByteArray_FromStringAndSize(NULL, self.count * size_max)
        cdef unsigned char* start = <unsigned char*> PyByteArray_AS_STRING(answers)
        cdef unsigned char* patch
        cdef Send* send
        cdef Writer writer, patched
        writer.at, writer.end = start, start + len(answers)
        for at in range(self.count):
            send = &self.sends[at]
            if send.oneway:
                continue
            patch = writer.at
            if send.binary:
                put_bytes(&writer, head)
                put_bytes(&writer, fields)
                put_hex(&writer, offsets[at])
                put_bytes(&writer, queue_name)
                put_counted_decimal(&writer, self.queue_ids[send.queue])
                put_bytes(&writer, offset_name)
                put_counted_decimal(&writer, send.queue_offset)
                patched.at, patched.end = patch, writer.at
                put_u32(&patched, <unsigned int> (writer.at - patch - 4))
                put_u32(&patched, <unsigned int> (1 << 24 | (writer.at - patch - FRAME_HEAD_SIZE)))
                patched.at = patch + FRAME_HEAD_SIZE + 5
                put_u32(&patched, <unsigned int> send.opaque)
                patched.at = patch + FRAME_HEAD_SIZE + 17
                put_u32(&patched, <unsigned int> (writer.at - patch - FRAME_HEAD_SIZE - BINARY_BLOCK_AT))
            else:
                put_u64(&writer, 0)
                put_bytes(&writer, before_id)
                put_hex(&writer, offsets[at])
                put_bytes(&writer, before_queue)
                put_decimal(&writer, self.queue_ids[send.queue])
                put_bytes(&writer, before_offset)
                put_decimal(&writer, send.queue_offset)
                put_bytes(&writer, before_opaque)
                put_decimal(&writer, send.opaque)
                put_bytes(&writer, last)
                patched.at, patched.end = patch, writer.at
                put_u32(&patched, <unsigned int> (writer.at - patch - 4))
                put_u32(&patched, <unsigned int> (writer.at - patch - FRAME_HEAD_SIZE))
        return PyBytes_FromStringAndSize(<const char*> start, writer.at - start)


def scan_sends(bytes received):
    """The run of plain sends with which received bytes begin; None if they begin with anything else."""
    cdef SendRun run
    cdef int at
    if len(received) < FRAME_HEAD_SIZE:
        return None
    run = SendRun.__new__(SendRun)
    run.received = received
    run.text = PyByteArray_FromStringAndSize(NULL, len(received))
    run.scan()
    if run.count == 0:
        return None
    PyByteArray_Resize(run.text, run.text_size)  # a run may wait, and its properties are a small part of what was received
    topics = [str(received[run.topics[at].at : run.topics[at].at + run.topics[at].size], "ascii") for at in range(run.topic_count)]
    run.queues = [(topics[run.queue_topics[at]], run.queue_ids[at]) for at in range(run.queue_count)]
    return run


# ---------------------------------------------------------------- writing bytes


cdef inline int check_room(Writer* writer, Py_ssize_t size) except -1:
    if writer.end - writer.at < size:
        raise AssertionError("more bytes than were counted")
    return 0


cdef inline int put_octet(Writer* writer, unsigned char value) except -1:
    check_room(writer, 1)
    writer.at[0] = value
    writer.at += 1
    return 0


cdef inline int put_u16(Writer* writer, unsigned int value) except -1:
    put_octet(writer, <unsigned char> (value >> 8))
    return put_octet(writer, <unsigned char> value)


cdef inline int put_u32(Writer* writer, unsigned int value) except -1:
    put_u16(writer, value >> 16)
    return put_u16(writer, value & 0xFFFF)


cdef inline int put_u64(Writer* writer, unsigned long long value) except -1:
    put_u32(writer, <unsigned int> (value >> 32))
    return put_u32(writer, <unsigned int> value)


cdef inline int put_bytes(Writer* writer, bytes value) except -1:
    check_room(writer, len(value))
    memcpy(writer.at, PyBytes_AS_STRING(value), len(value))
    writer.at += len(value)
    return 0


cdef inline int put_span(Writer* writer, Octets octets, Span span) except -1:
    cdef const unsigned char* start = bytes_of(octets, span)
    check_room(writer, span.size)
    memcpy(writer.at, start, span.size)
    writer.at += span.size
    return 0


cdef inline int put_hex(Writer* writer, unsigned long long value) except -1:
    """Write 16 digits."""
    cdef int shift
    cdef unsigned char digit
    for shift in range(60, -4, -4):
        digit = (value >> shift) & 15
        put_octet(writer, digit + (48 if digit < 10 else 55))
    return 0


cdef inline int digits_of(unsigned long long value) noexcept:
    cdef int digits = 1
    while value >= 10:
        value = value / 10
        digits += 1
    return digits


cdef inline int put_decimal(Writer* writer, long long value) except -1:
    cdef unsigned long long rest = <unsigned long long> (-value if value < 0 else value)
    cdef int digits, at
    if value < 0:
        put_octet(writer, 45)
    digits = digits_of(rest)
    check_room(writer, digits)
    for at in range(digits - 1, -1, -1):
        writer.at[at] = <unsigned char> (48 + rest % 10)
        rest = rest / 10
    writer.at += digits
    return 0


cdef inline int put_counted_decimal(Writer* writer, long long value) except -1:
    """Write the number of digits, then the digits of a number that is not negative."""
    put_u32(writer, <unsigned int> digits_of(<unsigned long long> value))
    return put_decimal(writer, value)


# ---------------------------------------------------------------- what is derived


cdef inline str text_of(Octets text, Span span):
    if span.size == 0:
        return ""
    return PyUnicode_DecodeASCII(<const char*> bytes_of(text, span), span.size, NULL)


cdef inline int java_hash(Octets text, Span span) except? -1:
    """The hash of a text as Java's `String.hashCode`."""
    cdef const unsigned char* start = bytes_of(text, span)
    cdef unsigned int found = 0
    cdef Py_ssize_t at
    for at in range(span.size):
        found = found * 31 + start[at]
    return <int> found


# ---------------------------------------------------------------- deriving


cdef class Group:
    """The units of one queue."""

    cdef str topic
    cdef object queue_id
    cdef object first
    cdef object first_position
    cdef long long next_offset
    cdef long long physical_end
    cdef bytearray units


def group_records(list records):
    cdef dict groups = {}
    cdef list indexed = []
    cdef Group group
    cdef long long queue_offset, physical_offset, size, tags_code, sys_flag
    cdef Py_ssize_t end
    cdef Writer writer
    cdef tuple record, key
    for record in records:
        sys_flag = record[7]
        if sys_flag & TRANSACTION_FLAGS or record[10]:
            return None
        queue_offset, physical_offset, size, tags_code = record[2], record[3], record[4], record[5]
        if physical_offset > LONG_MAX - 0x7FFFFFFF or not 0 <= size <= 0x7FFFFFFF:
            return None
        key = (record[0], record[1])
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group.__new__(Group)
            group.topic, group.queue_id, group.first, group.first_position = record[0], record[1], record[2], record[3]
            group.next_offset, group.units = queue_offset, bytearray()
        if queue_offset != group.next_offset:
            return None
        group.next_offset += 1
        group.physical_end = physical_offset + size
        end = len(group.units)
        PyByteArray_Resize(group.units, end + UNIT_SIZE)
        writer.at = <unsigned char*> PyByteArray_AS_STRING(group.units) + end
        writer.end = writer.at + UNIT_SIZE
        put_u64(&writer, <unsigned long long> physical_offset)
        put_u32(&writer, <unsigned int> size)
        put_u64(&writer, <unsigned long long> tags_code)
        if record[8] or record[9]:
            indexed.append((record[0], record[8], record[9], record[3], record[6]))
    found = [
        (group.topic, group.queue_id, group.first, group.first_position, group.physical_end, group.units)
        for group in groups.values()
    ]
    return found, indexed


cdef unsigned int hash_units(unsigned int found, str text) except? 0:
    """Continue the hash of Java's `String.hashCode` over the UTF-16 code units of a text."""
    cdef Py_UCS4 character
    cdef unsigned int one
    for character in text:
        one = <unsigned int> character
        if one > 0xFFFF:
            found = (found * 31 + 0xD7C0 + (one >> 10)) * 31 + 0xDC00 + (one & 0x3FF)
        else:
            found = found * 31 + one
    return found


cdef inline unsigned int positive(unsigned int found) noexcept:
    """Java's `Math.abs` of the signed value, and 0 where that stays negative."""
    return found if found < 0x80000000 else 0 if found == 0x80000000 else 0 - found


def hash_keys(entries, long long end):
    cdef list hashes = [], offsets = [], times = []
    cdef str topic, unique_key, keys, last_topic = None
    cdef unsigned int start = 0
    cdef long long physical_offset
    for topic, unique_key, keys, offset, timestamp in entries:
        physical_offset = offset
        if physical_offset < end:
            continue
        end = physical_offset
        if topic is not last_topic:
            start, last_topic = hash_units(hash_units(0, topic), "#"), topic
        if unique_key:
            hashes.append(positive(hash_units(start, unique_key)))
            offsets.append(offset)
            times.append(timestamp)
        if keys:
            for key in keys.split(" "):
                if key:
                    hashes.append(positive(hash_units(start, key)))
                    offsets.append(offset)
                    times.append(timestamp)
    return hashes, offsets, times


def pack_entries(hashes, offsets, times, long long begin, previous):
    cdef Py_ssize_t count = len(hashes)
    cdef bytearray entries = PyByteArray_FromStringAndSize(NULL, count * INDEX_ENTRY_SIZE)
    cdef Writer writer
    cdef long long seconds
    writer.at = <unsigned char*> PyByteArray_AS_STRING(entries)
    writer.end = writer.at + len(entries)
    for value, offset, time, before in zip(hashes, offsets, times, previous, strict=True):
        seconds = max(<long long> time - begin, 0) / 1000
        put_u32(&writer, <unsigned int> value)
        put_u64(&writer, <unsigned long long> <long long> offset)
        put_u32(&writer, <unsigned int> min(seconds, 0x7FFFFFFF))
        put_u32(&writer, <unsigned int> before)
    return entries
