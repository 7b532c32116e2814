set -e
cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release > $OUT/cmake.log 2>&1 || { tail -20 $OUT/cmake.log; exit 1; }
build() { P=/tmp/p$1; cmake --build build/gpu > $OUT/build$1.log 2>&1 || { tail -30 $OUT/build$1.log; exit 1; }
 mkdir -p $P; cp -r src/jali $P/; rm -f $P/jali/_core*.so; cmake --install build/gpu --component python --prefix $P > /dev/null; }
V="apart,complex,real,nadj"
[ -d /tmp/pbase ] || build base
[ -d /tmp/pA ] || { cp .dev/sums_A.hpp src/jali/codegen/prelude/sums_gpu.hpp; build A; }
for v in base A; do
 PYTHONPATH=/tmp/p$v python3 .dev/cg_variants.py $v $V 8:d,16:d,24:d,8:f,16:f,24:f 2>&1 | tee $OUT/$v.txt
done
